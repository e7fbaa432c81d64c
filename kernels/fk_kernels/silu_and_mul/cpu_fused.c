/* silu_and_mul for CPU: one pass, float32 arithmetic, rows shared out over torch's OpenMP threads.
 *
 * ftz_exp computes e^x as 2^n * p(f), f in [-0.5, 0.5] * ln 2, with a degree-6 polynomial: relative error below 2e-7,
 * which is under one unit in the last place of float32. libm's expf would keep the loop from being vectorised.
 */
#include <stdint.h>
#include <string.h>

static inline float bits_to_float(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
static inline uint32_t float_to_bits(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }

static inline float ftz_exp(float argument) {
    float x = argument > 88.0f ? 88.0f : argument;
    x = x < -87.0f ? -87.0f : x;
    float n = __builtin_rintf(x * 1.44269504088896341f);
    float f = x - n * 0.693359375f;
    f = f + n * 2.12194440e-4f;
    float p = 1.3981999507e-3f;
    p = p * f + 8.3334519073e-3f;
    p = p * f + 4.1665795894e-2f;
    p = p * f + 1.6666665459e-1f;
    p = p * f + 5.0000001201e-1f;
    p = p * f * f + f + 1.0f;
    p *= bits_to_float((uint32_t)((int32_t)n + 127) << 23);
    /* Overflow must reach infinity: silu(-inf) is -inf / inf = NaN, and silu(-100) is -0. */
    return argument > 88.0f ? __builtin_inff() : p;
}

/* The clamp above turns NaN into a number, so x itself stays a factor of the result: NaN in, NaN out. */
static inline float silu(float x) { return x / (1.0f + ftz_exp(-x)); }

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

#define DEFINE(NAME, TYPE)                                                                                  \
    void silu_and_mul_##NAME(const TYPE *x, TYPE *out, int64_t rows, int64_t half, int64_t row_stride,      \
                             int round_activation) {                                                        \
        _Pragma("omp parallel for schedule(static) if (rows * half > 16384)")                               \
        for (int64_t row = 0; row < rows; row++) {                                                          \
            const TYPE *gate = x + row * row_stride, *up = gate + half;                                     \
            TYPE *to = out + row * half;                                                                    \
            if (round_activation)                                                                           \
                for (int64_t i = 0; i < half; i++)                                                          \
                    to[i] = store_##NAME(load_##NAME(store_##NAME(silu(load_##NAME(gate[i]))))              \
                                         * load_##NAME(up[i]));                                             \
            else                                                                                            \
                for (int64_t i = 0; i < half; i++)                                                          \
                    to[i] = store_##NAME(silu(load_##NAME(gate[i])) * load_##NAME(up[i]));                  \
        }                                                                                                   \
    }

DEFINE(f32, float)
DEFINE(bf16, uint16_t)
DEFINE(f16, _Float16)
