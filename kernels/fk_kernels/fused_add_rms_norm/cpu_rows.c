/* fused_add_rms_norm for CPU: float32 arithmetic, rows shared out over torch's OpenMP threads.
 *
 * out may be x and total may be residual, element for element: a block of the row is summed into a buffer of its own
 * before it is overwritten. The buffer also keeps every loop at one store, which lets the compiler vectorise it.
 * The squares are summed in float64: loops that the compiler does not vectorise must not lose accuracy by it.
 * A row is summed in one order whatever the number of rows and threads, so its result is the same alone and in a batch.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float bits_to_float(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
static inline uint32_t float_to_bits(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }

static inline float load_f32(float v) { return v; }
static inline float store_f32(float v) { return v; }

static inline float load_bf16(uint16_t v) { return bits_to_float((uint32_t)v << 16); }
static inline uint16_t store_bf16(float v) { /* round to nearest even; NaN stays NaN */
    uint32_t u = float_to_bits(v);
    uint16_t rounded = (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    return (u & 0x7fffffffu) > 0x7f800000u ? (uint16_t)((u >> 16) | 0x40u) : rounded;
}

static inline float load_f16(_Float16 v) { return (float)v; }
static inline _Float16 store_f16(float v) { return (_Float16)v; }

enum { ROUND_WEIGHT, ROUND_ONCE, ROUND_INPUT };

/* AS(T, v): v rounded to T, as a float again. */
#define AS(T, v) load_##T(store_##T(v))

enum { BLOCK = 1024 };

/* sum is float32: the norm sees it unrounded. */
#define EACH(EXPRESSION) for (int64_t i = 0; i < size; i++) to[i] = EXPRESSION;

#define DEFINE(X, XTYPE, W, WTYPE)                                                                          \
    void fused_add_rms_norm_##X##_##W(const XTYPE *x, const XTYPE *residual, const WTYPE *weight,           \
                                      XTYPE *out, XTYPE *total, int64_t rows, int64_t x_stride,             \
                                      int64_t residual_stride, int64_t out_stride, int64_t total_stride,    \
                                      int64_t width, int64_t counted, float eps, int rounding) {            \
        _Pragma("omp parallel for schedule(static) if (rows * width > 16384)")                              \
        for (int64_t row = 0; row < rows; row++) {                                                          \
            const XTYPE *from = x + row * x_stride, *add = residual + row * residual_stride;                \
            double squares = 0.0;                                                                           \
            _Pragma("omp simd reduction(+ : squares)")                                                      \
            for (int64_t i = 0; i < counted; i++) {                                                         \
                const float value = load_##X(from[i]) + load_##X(add[i]);                                   \
                squares += value * value;                                                                   \
            }                                                                                               \
            const float scale = 1.0f / sqrtf((float)(squares / (double)counted) + eps);                     \
            for (int64_t start = 0; start < width; start += BLOCK) {                                        \
                const int64_t size = width - start < BLOCK ? width - start : BLOCK;                         \
                const WTYPE *w = weight + start;                                                            \
                XTYPE *to = out + row * out_stride + start, *total_to = total + row * total_stride + start; \
                float sum[BLOCK];                                                                           \
                for (int64_t i = 0; i < size; i++) sum[i] = load_##X(from[start + i]) + load_##X(add[start + i]);\
                for (int64_t i = 0; i < size; i++) total_to[i] = store_##X(sum[i]);                         \
                if (!weight)                                                                                \
                    EACH(store_##X(sum[i] * scale))                                                         \
                else if (rounding == ROUND_WEIGHT)                                                          \
                    EACH(store_##X(AS(W, AS(W, sum[i] * scale) * load_##W(w[i]))))                          \
                else if (rounding == ROUND_ONCE)                                                            \
                    EACH(store_##X(sum[i] * scale * load_##W(w[i])))                                        \
                else                                                                                        \
                    EACH(store_##X(AS(X, sum[i] * scale) * load_##W(w[i])))                                 \
            }                                                                                               \
        }                                                                                                   \
    }

#define DEFINE_X(X, XTYPE)                                                                                  \
    DEFINE(X, XTYPE, f32, float)                                                                            \
    DEFINE(X, XTYPE, bf16, uint16_t)                                                                        \
    DEFINE(X, XTYPE, f16, _Float16)

DEFINE_X(f32, float)
DEFINE_X(bf16, uint16_t)
DEFINE_X(f16, _Float16)
