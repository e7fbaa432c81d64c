/* fused_add_rms_norm for CPU: float32 arithmetic, rows shared out over torch's OpenMP threads.
 *
 * out may be x and total may be residual, element for element: index i is read before it is written and by nobody else,
 * which is what `omp simd` asserts (without it the compiler's own overlap check would choose the scalar loop).
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

/* sum is kept in float32: the norm sees it unrounded. */
#define EACH(X, EXPRESSION)                                                                                 \
    _Pragma("omp simd")                                                                                     \
    for (int64_t i = 0; i < width; i++) {                                                                   \
        const float sum = load_##X(from[i]) + load_##X(add[i]);                                             \
        total_to[i] = store_##X(sum);                                                                       \
        to[i] = EXPRESSION;                                                                                 \
    }

#define DEFINE(X, XTYPE, W, WTYPE)                                                                          \
    void fused_add_rms_norm_##X##_##W(const XTYPE *x, const XTYPE *residual, const WTYPE *weight,           \
                                      XTYPE *out, XTYPE *total, int64_t rows, int64_t x_stride,             \
                                      int64_t residual_stride, int64_t out_stride, int64_t total_stride,    \
                                      int64_t width, int64_t counted, float eps, int rounding) {            \
        _Pragma("omp parallel for schedule(static) if (rows * width > 16384)")                              \
        for (int64_t row = 0; row < rows; row++) {                                                          \
            const XTYPE *from = x + row * x_stride, *add = residual + row * residual_stride;                \
            XTYPE *to = out + row * out_stride, *total_to = total + row * total_stride;                     \
            double squares = 0.0;                                                                           \
            _Pragma("omp simd reduction(+ : squares)")                                                      \
            for (int64_t i = 0; i < counted; i++) {                                                         \
                const float sum = load_##X(from[i]) + load_##X(add[i]);                                     \
                squares += sum * sum;                                                                       \
            }                                                                                               \
            const float scale = 1.0f / sqrtf((float)(squares / (double)counted) + eps);                     \
            if (!weight)                                                                                    \
                EACH(X, store_##X(sum * scale))                                                             \
            else if (rounding == ROUND_WEIGHT)                                                              \
                EACH(X, store_##X(AS(W, AS(W, sum * scale) * load_##W(weight[i]))))                         \
            else if (rounding == ROUND_ONCE)                                                                \
                EACH(X, store_##X(sum * scale * load_##W(weight[i])))                                       \
            else                                                                                            \
                EACH(X, store_##X(AS(X, sum * scale) * load_##W(weight[i])))                                \
        }                                                                                                   \
    }

#define DEFINE_X(X, XTYPE)                                                                                  \
    DEFINE(X, XTYPE, f32, float)                                                                            \
    DEFINE(X, XTYPE, bf16, uint16_t)                                                                        \
    DEFINE(X, XTYPE, f16, _Float16)

DEFINE_X(f32, float)
DEFINE_X(bf16, uint16_t)
DEFINE_X(f16, _Float16)
