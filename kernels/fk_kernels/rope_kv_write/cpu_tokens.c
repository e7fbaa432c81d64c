/* rope_kv_write for CPU: float32 arithmetic, tokens shared out over torch's OpenMP threads. */
#include <stdint.h>
#include <string.h>

enum { MAX_HALF = 256 }; /* pairs per head; the Python file's guard keeps to it */

/* Strides in elements. A token's heads, and a cache's slots. */
struct heads { void *x; int64_t token, head, count; };
struct slots { void *x; int64_t block, place, head; };
struct sizes { int64_t tokens, limit, table_row, half, size, capacity, page; int32_t neox, rounds; };

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

#define AT(T, h, token, i) ((T *)(h)->x + (token) * (h)->token + (i) * (h)->head)

/* Rotated dimensions computed, the others copied; in place there is nothing to copy. */
#define DEFINE_TOKEN(X, XTYPE)                                                                              \
    static inline void token_##X(const struct heads *in, const struct heads *out, int64_t token,            \
                                 const float *row, const struct sizes *s) {                                 \
        for (int64_t i = 0; i < in->count; i++) {                                                           \
            const XTYPE *from = AT(XTYPE, in, token, i);                                                    \
            XTYPE *to = AT(XTYPE, out, token, i);                                                           \
            head_##X(from, to, row, row + s->half, s->half, s->neox, s->rounds);                            \
            if (from != to)                                                                                 \
                memcpy(to + 2 * s->half, from + 2 * s->half, (size_t)(s->size - 2 * s->half) * sizeof *to); \
        }                                                                                                   \
    }                                                                                                       \
    static inline void store_token_##X(const struct heads *rows, const struct slots *cache, int64_t token,  \
                                       int64_t slot, const struct sizes *s) {                               \
        XTYPE *to = (XTYPE *)cache->x + slot / s->page * cache->block + slot % s->page * cache->place;      \
        for (int64_t i = 0; i < rows->count; i++)                                                           \
            memcpy(to + i * cache->head, AT(XTYPE, rows, token, i), (size_t)s->size * sizeof *to);          \
    }

DEFINE_TOKEN(f32, float)
DEFINE_TOKEN(bf16, uint16_t)
DEFINE_TOKEN(f16, _Float16)

/* A position outside the table or a slot past the end is the caller's error; the row is left alone. A negative slot is
 * padding: the row is rotated and not stored. */
#define DEFINE(X, XTYPE, C, CTYPE)                                                                          \
    void rope_kv_write_##X##_##C(const struct heads *h, const struct slots *caches,                         \
                                 const int64_t *positions, const int64_t *slots, const CTYPE *table,        \
                                 const struct sizes *s) {                                                   \
        const struct heads *query = h, *key = h + 1, *value = h + 2, *query_out = h + 3, *key_out = h + 4;  \
        const int64_t half = s->half, table_row = s->table_row;                                             \
        const int rounds = s->rounds;                                                                       \
        _Pragma("omp parallel for schedule(static) if (s->tokens * query->count * s->size > 16384)")        \
        for (int64_t token = 0; token < s->tokens; token++) {                                               \
            const int64_t position = positions[token], slot = slots[token];                                 \
            if (position < 0 || position >= s->limit || slot >= s->capacity) continue;                      \
            READ_TABLE(X, C)                                                                                \
            token_##X(query, query_out, token, row, s);                                                     \
            token_##X(key, key_out, token, row, s);                                                         \
            if (slot < 0) continue;                                                                         \
            store_token_##X(key_out, caches, token, slot, s);                                               \
            store_token_##X(value, caches + 1, token, slot, s);                                             \
        }                                                                                                   \
    }

DEFINE(f32, float, f32, float)
DEFINE(bf16, uint16_t, f32, float)
DEFINE(bf16, uint16_t, bf16, uint16_t)
DEFINE(f16, _Float16, f32, float)
DEFINE(f16, _Float16, f16, _Float16)
