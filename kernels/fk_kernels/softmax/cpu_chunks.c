/* softmax for CPU: float32 arithmetic, rows cut into chunks that are shared out over torch's OpenMP threads.
 *
 * The chunk is a constant and the partial results are combined in order, so a row's result depends neither on the number
 * of threads nor on the rows beside it.
 *
 * Blocks are summed in float32 and added up in float64: where the compiler does not vectorise a sum (float16 without
 * AVX512-FP16), 8,192 terms one by one in float32 would lose 20 times what PyTorch loses.
 *
 * fast_exp computes e^x as 2^n * p(f), f in [-0.5, 0.5] * ln 2, with a degree-6 polynomial: relative error below 2e-7,
 * which is under one unit in the last place of float32. libm's expf would keep the loop from being vectorised.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { CHUNK = 8192, BLOCK = 256 };

static inline float bits_to_float(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
static inline uint32_t float_to_bits(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }

/* x is at most 0, minus infinity or NaN. Results below 2^-126 are flushed to zero. */
static inline float fast_exp(float x) {
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
    return x < -87.33f ? 0.0f : p; /* NaN compares false all the way and stays NaN in p */
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

static inline int64_t chunk_end(int64_t chunk, int64_t width) {
    return (chunk + 1) * CHUNK < width ? (chunk + 1) * CHUNK : width;
}

/* partial: 2 floats per row and chunk, maximum and sum of exp. */
#define DEFINE(X, XTYPE, Y, YTYPE)                                                                          \
    void softmax_##X##_##Y(const XTYPE *x, YTYPE *out, float *partial, int64_t rows, int64_t row_stride,    \
                           int64_t width) {                                                                 \
        const int64_t chunks = (width + CHUNK - 1) / CHUNK, parts = rows * chunks;                          \
        _Pragma("omp parallel for schedule(static) if (rows * width > 16384)")                              \
        for (int64_t part = 0; part < parts; part++) {                                                      \
            const XTYPE *from = x + (part / chunks) * row_stride;                                           \
            const int64_t start = (part % chunks) * CHUNK, end = chunk_end(part % chunks, width);           \
            float top = -INFINITY;                                                                          \
            double total = 0.0;                                                                             \
            _Pragma("omp simd reduction(max : top)")                                                        \
            for (int64_t i = start; i < end; i++) top = load_##X(from[i]) > top ? load_##X(from[i]) : top;  \
            /* A chunk of minus infinities must add 0 to a row that has finite values elsewhere, not NaN. */ \
            const float base = top == -INFINITY ? 0.0f : top;                                               \
            for (int64_t block = start; block < end; block += BLOCK) {                                      \
                const int64_t stop = block + BLOCK < end ? block + BLOCK : end;                             \
                float sum = 0.0f;                                                                           \
                _Pragma("omp simd reduction(+ : sum)")                                                      \
                for (int64_t i = block; i < stop; i++) sum += fast_exp(load_##X(from[i]) - base);           \
                total += sum;                                                                               \
            }                                                                                               \
            partial[2 * part] = top;                                                                        \
            partial[2 * part + 1] = (float)total;                                                           \
        }                                                                                                   \
        _Pragma("omp parallel for schedule(static) if (rows * width > 16384)")                              \
        for (int64_t part = 0; part < parts; part++) {                                                      \
            const int64_t row = part / chunks;                                                              \
            const float *of_row = partial + 2 * row * chunks;                                               \
            float top = -INFINITY, total = 0.0f;                                                            \
            for (int64_t c = 0; c < chunks; c++) top = of_row[2 * c] > top ? of_row[2 * c] : top;           \
            for (int64_t c = 0; c < chunks; c++) total += of_row[2 * c + 1] * fast_exp(of_row[2 * c] - top); \
            const XTYPE *from = x + row * row_stride;                                                       \
            YTYPE *to = out + row * width;                                                                  \
            const int64_t start = (part % chunks) * CHUNK, end = chunk_end(part % chunks, width);           \
            _Pragma("omp simd")                                                                             \
            for (int64_t i = start; i < end; i++)                                                           \
                to[i] = store_##Y(fast_exp(load_##X(from[i]) - top) / total);                               \
        }                                                                                                   \
    }

#define DEFINE_X(X, XTYPE)                                                                                  \
    DEFINE(X, XTYPE, f32, float)                                                                            \
    DEFINE(X, XTYPE, bf16, uint16_t)                                                                        \
    DEFINE(X, XTYPE, f16, _Float16)

DEFINE_X(f32, float)
DEFINE_X(bf16, uint16_t)
DEFINE_X(f16, _Float16)
