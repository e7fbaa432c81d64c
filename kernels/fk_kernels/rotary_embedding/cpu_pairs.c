/* rotary_embedding for CPU: in place, float32 arithmetic, tokens shared out over torch's OpenMP threads. */
#include <stdint.h>
#include <string.h>

enum { MAX_HALF = 256 }; /* pairs per head; the Python file's guard keeps to it */

/* Strides in elements. */
struct heads { void *x; int64_t token, head, count; };

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

/* AS(T, v): v rounded to T, as a float again. */
#define AS(T, v) load_##T(store_##T(v))

/* One head: HALF pairs at FIRST(i), SECOND(i). Both members are read before either is written, so `to` may be `from`. */
#define ROTATE(X, XTYPE, FIRST, SECOND)                                                                     \
    for (int64_t i = 0; i < half; i++) {                                                                    \
        const float a = load_##X(from[FIRST]), b = load_##X(from[SECOND]);                                  \
        float ac = a * cos[i], bs = b * sin[i], bc = b * cos[i], as = a * sin[i];                           \
        if (rounds) ac = AS(X, ac), bs = AS(X, bs), bc = AS(X, bc), as = AS(X, as);                         \
        to[FIRST] = store_##X(ac - bs);                                                                     \
        to[SECOND] = store_##X(bc + as);                                                                    \
    }

#define DEFINE_HEAD(X, XTYPE)                                                                               \
    static inline void head_##X(const XTYPE *from, XTYPE *to, const float *cos, const float *sin,           \
                                int64_t half, int neox, int rounds) {                                       \
        if (neox) {                                                                                         \
            ROTATE(X, XTYPE, i, i + half)                                                                   \
        } else {                                                                                            \
            ROTATE(X, XTYPE, 2 * i, 2 * i + 1)                                                              \
        }                                                                                                   \
    }

DEFINE_HEAD(f32, float)
DEFINE_HEAD(bf16, uint16_t)
DEFINE_HEAD(f16, _Float16)

/* A row of the table as floats: its cosines, then its sines; rounded to x's dtype where the products are. */
#define READ_TABLE(X, C)                                                                                    \
    float row[2 * MAX_HALF];                                                                                \
    for (int64_t i = 0; i < 2 * half; i++) {                                                                \
        const float v = load_##C(table[position * table_row + i]);                                          \
        row[i] = rounds ? AS(X, v) : v;                                                                     \
    }

/* A position outside the table is the caller's error; its row is left alone. */
#define DEFINE(X, XTYPE, C, CTYPE)                                                                          \
    void rotary_embedding_##X##_##C(const struct heads *query, const struct heads *key,                     \
                                    const int64_t *positions, const CTYPE *table, int64_t table_row,        \
                                    int64_t limit, int64_t tokens, int64_t half, int neox, int rounds) {    \
        const int64_t work = tokens * (query->count + key->count) * half;                                   \
        _Pragma("omp parallel for schedule(static) if (work > 16384)")                                      \
        for (int64_t token = 0; token < tokens; token++) {                                                  \
            const int64_t position = positions[token];                                                      \
            if (position < 0 || position >= limit) continue;                                                \
            READ_TABLE(X, C)                                                                                \
            for (const struct heads *h = query; h; h = h == query ? key : 0)                                \
                for (int64_t i = 0; i < h->count; i++) {                                                    \
                    XTYPE *x = (XTYPE *)h->x + token * h->token + i * h->head;                              \
                    head_##X(x, x, row, row + half, half, neox, rounds);                                    \
                }                                                                                           \
        }                                                                                                   \
    }

DEFINE(f32, float, f32, float)
DEFINE(bf16, uint16_t, f32, float)
DEFINE(bf16, uint16_t, bf16, uint16_t)
DEFINE(f16, _Float16, f32, float)
DEFINE(f16, _Float16, f16, _Float16)
