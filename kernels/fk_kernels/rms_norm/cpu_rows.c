/* rms_norm for CPU: float32 arithmetic, one row after the other, rows shared out over torch's OpenMP threads.
 *
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

#define DEFINE(X, XTYPE, W, WTYPE)                                                                          \
    void rms_norm_##X##_##W(const XTYPE *x, const WTYPE *weight, XTYPE *out, int64_t rows, int64_t inner,   \
                            int64_t outer_stride, int64_t inner_stride, int64_t width, int64_t counted,     \
                            float eps, int rounding) {                                                      \
        _Pragma("omp parallel for schedule(static) if (rows * width > 16384)")                              \
        for (int64_t row = 0; row < rows; row++) {                                                          \
            const XTYPE *from = x + (row / inner) * outer_stride + (row % inner) * inner_stride;            \
            XTYPE *to = out + row * width;                                                                  \
            double squares = 0.0;                                                                           \
            _Pragma("omp simd reduction(+ : squares)")                                                      \
            for (int64_t i = 0; i < counted; i++) squares += load_##X(from[i]) * load_##X(from[i]);         \
            const float scale = 1.0f / sqrtf((float)(squares / (double)counted) + eps);                     \
            if (!weight)                                                                                    \
                for (int64_t i = 0; i < width; i++) to[i] = store_##X(load_##X(from[i]) * scale);           \
            else if (rounding == ROUND_WEIGHT)                                                              \
                for (int64_t i = 0; i < width; i++)                                                         \
                    to[i] = store_##X(AS(W, AS(W, load_##X(from[i]) * scale) * load_##W(weight[i])));       \
            else if (rounding == ROUND_ONCE)                                                                \
                for (int64_t i = 0; i < width; i++)                                                         \
                    to[i] = store_##X(load_##X(from[i]) * scale * load_##W(weight[i]));                     \
            else                                                                                            \
                for (int64_t i = 0; i < width; i++)                                                         \
                    to[i] = store_##X(AS(X, load_##X(from[i]) * scale) * load_##W(weight[i]));              \
        }                                                                                                   \
    }

#define DEFINE_X(X, XTYPE)                                                                                  \
    DEFINE(X, XTYPE, f32, float)                                                                            \
    DEFINE(X, XTYPE, bf16, uint16_t)                                                                        \
    DEFINE(X, XTYPE, f16, _Float16)

DEFINE_X(f32, float)
DEFINE_X(bf16, uint16_t)
DEFINE_X(f16, _Float16)
