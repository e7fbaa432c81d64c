/* layer_norm for CPU: float32 arithmetic, rows shared out over torch's OpenMP threads.
 *
 * Both sums are taken in float64, and the second over differences from the mean: a row whose mean is far from zero does
 * not lose its variance to cancellation. A row is summed in one order whatever the number of rows and threads, so its
 * result is the same alone and in a batch.
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

/* Weight and bias share a dtype; a null pointer stands for none. */
#define DEFINE(X, XTYPE, W, WTYPE)                                                                          \
    void layer_norm_##X##_##W(const XTYPE *x, const WTYPE *weight, const WTYPE *bias, XTYPE *out,           \
                              int64_t rows, int64_t row_stride, int64_t width, float eps) {                 \
        _Pragma("omp parallel for schedule(static) if (rows * width > 16384)")                              \
        for (int64_t row = 0; row < rows; row++) {                                                          \
            const XTYPE *from = x + row * row_stride;                                                       \
            XTYPE *to = out + row * width;                                                                  \
            double sum = 0.0, squares = 0.0;                                                                \
            _Pragma("omp simd reduction(+ : sum)")                                                          \
            for (int64_t i = 0; i < width; i++) sum += load_##X(from[i]);                                   \
            const double mean = sum / (double)width;                                                        \
            _Pragma("omp simd reduction(+ : squares)")                                                      \
            for (int64_t i = 0; i < width; i++) {                                                           \
                const double off = load_##X(from[i]) - mean;                                                \
                squares += off * off;                                                                       \
            }                                                                                               \
            const float scale = (float)(1.0 / sqrt(squares / (double)width + (double)eps));                 \
            const float centre = (float)mean;                                                               \
            for (int64_t i = 0; i < width; i++) {                                                           \
                float v = (load_##X(from[i]) - centre) * scale;                                             \
                if (weight) v *= load_##W(weight[i]);                                                       \
                if (bias) v += load_##W(bias[i]);                                                           \
                to[i] = store_##X(v);                                                                       \
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
