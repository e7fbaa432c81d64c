/* gelu_and_mul for CPU: one pass, float32 arithmetic, rows shared out over torch's OpenMP threads.
 *
 * small_exp computes e^x for x <= 0 as 2^n * p(f), f in [-0.5, 0.5] * ln 2, with a degree-6 polynomial: relative error
 * below 2e-7. libm's expf and erff would keep the loop from being vectorised.
 *
 * Neither form subtracts from 1, so gates far below zero keep their relative accuracy:
 *     exact  g / 2 * erfc(-g / sqrt(2)), with erfc(z) = e^(-z^2) t q(t), t = 1 / (1 + z / 2). q is a weighted Chebyshev
 *            fit of degree 9 over z in [0, 14]: relative error below 3e-7 in float32.
 *     tanh   g * sigmoid(2 u)
 */
#include <stdint.h>
#include <string.h>

static inline float bits_to_float(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
static inline uint32_t float_to_bits(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }

/* x is at most 0, minus infinity or NaN. Results below 2^-126 are flushed to zero. */
static inline float small_exp(float x) {
    float low = x < -87.33f ? -87.33f : x;
    float n = __builtin_rintf(low * 1.44269504088896341f);
    float f = low - n * 0.693359375f;
    f = f + n * 2.12194440e-4f;
    float p = 1.3981999507e-3f;
    p = p * f + 8.3334519073e-3f;
    p = p * f + 4.1665795894e-2f;
    p = p * f + 1.6666665459e-1f;
    p = p * f + 5.0000001201e-1f;
    p = p * f * f + f + 1.0f;
    p *= bits_to_float((uint32_t)((int32_t)n + 127) << 23);
    return x < -87.33f ? 0.0f : p;
}

/* g is a factor of both results: NaN in, NaN out, and minus infinity times zero is the reference's NaN. */
static inline float gelu_exact(float g) {
    float z = __builtin_fabsf(g) * 0.70710678118654752f;
    float t = 1.0f / (1.0f + 0.5f * z);
    float q = 0.00276664599f;
    q = q * t - 0.0735261221f;
    q = q * t + 0.317107712f;
    q = q * t - 0.528457227f;
    q = q * t + 0.310463312f;
    q = q * t - 0.0429092358f;
    q = q * t + 0.207910771f;
    q = q * t + 0.242074924f;
    q = q * t + 0.282487991f;
    q = q * t + 0.282081192f;
    float tail = small_exp(-z * z) * t * q;
    return 0.5f * g * (g < 0.0f ? tail : 2.0f - tail);
}

static inline float gelu_tanh(float g) {
    float twice_u = 1.5957691216057308f * (g + 0.044715f * g * g * g);
    float e = small_exp(-__builtin_fabsf(twice_u)); /* sigmoid(v) = 1 / (1 + e), for v < 0 e / (1 + e) */
    return g * ((twice_u < 0.0f ? e : 1.0f) / (1.0f + e));
}

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

#define LOOP(X, GELU)                                                                                       \
    if (round_activation)                                                                                   \
        for (int64_t i = 0; i < half; i++)                                                                  \
            to[i] = store_##X(load_##X(store_##X(GELU(load_##X(gate[i])))) * load_##X(up[i]));              \
    else                                                                                                    \
        for (int64_t i = 0; i < half; i++) to[i] = store_##X(GELU(load_##X(gate[i])) * load_##X(up[i]));

#define DEFINE(X, TYPE)                                                                                     \
    void gelu_and_mul_##X(const TYPE *x, TYPE *out, int64_t rows, int64_t half, int64_t row_stride,         \
                          int use_tanh, int round_activation) {                                             \
        _Pragma("omp parallel for schedule(static) if (rows * half > 16384)")                               \
        for (int64_t row = 0; row < rows; row++) {                                                          \
            const TYPE *gate = x + row * row_stride, *up = gate + half;                                     \
            TYPE *to = out + row * half;                                                                    \
            if (use_tanh) {                                                                                 \
                LOOP(X, gelu_tanh)                                                                          \
            } else {                                                                                        \
                LOOP(X, gelu_exact)                                                                         \
            }                                                                                               \
        }                                                                                                   \
    }

DEFINE(f32, float)
DEFINE(bf16, uint16_t)
DEFINE(f16, _Float16)
