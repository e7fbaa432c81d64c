/* store_kv_cache for CPU: one memcpy per token and head, or per token where its heads lie side by side. Strides are in
 * bytes, so one function serves every dtype. */
#include <stdint.h>
#include <string.h>

struct place { char *cache; const char *rows; int64_t row, row_head, block, in_block, cache_head; };

static inline void copy_token(const struct place *p, int64_t token, int64_t block, int64_t in_block, int64_t heads,
                              int64_t bytes) {
    const char *from = p->rows + token * p->row;
    char *to = p->cache + block * p->block + in_block * p->in_block;
    if (p->row_head == bytes && p->cache_head == bytes) {
        memcpy(to, from, (size_t)(heads * bytes));
        return;
    }
    for (int64_t h = 0; h < heads; h++) memcpy(to + h * p->cache_head, from + h * p->row_head, (size_t)bytes);
}

/* Negative slots are padding. A slot past the end is the caller's error; it is not written either. */
#define DEFINE(NAME, TYPE)                                                                                  \
    void store_kv_cache_##NAME(const struct place *key, const struct place *value, const TYPE *slots,       \
                               int64_t tokens, int64_t capacity, int64_t page, int64_t heads,               \
                               int64_t bytes) {                                                             \
        _Pragma("omp parallel for schedule(static) if (tokens * heads * bytes > 65536)")                    \
        for (int64_t token = 0; token < tokens; token++) {                                                  \
            const int64_t slot = slots[token];                                                              \
            if (slot < 0 || slot >= capacity) continue;                                                     \
            copy_token(key, token, slot / page, slot % page, heads, bytes);                                 \
            copy_token(value, token, slot / page, slot % page, heads, bytes);                               \
        }                                                                                                   \
    }

DEFINE(i64, int64_t)
DEFINE(i32, int32_t)
