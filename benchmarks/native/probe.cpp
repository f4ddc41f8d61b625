// What the processor does at most: 8-bit products from registers, and reading memory. Compiled by limits.py.
#include <stdint.h>

#include <immintrin.h>

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vnni")))
#define REPEAT_16(do) do(0) do(1) do(2) do(3) do(4) do(5) do(6) do(7) do(8) do(9) do(10) do(11) do(12) do(13) do(14) do(15)

// Sixteen sums of 64 products each, `rounds` times: 2048 operations a round.
extern "C" AVX512 int32_t probe_products(int64_t rounds) {
    __m512i x = _mm512_set1_epi8(3), y = _mm512_set1_epi8(5);
#define DECLARE(i) __m512i sum_##i = _mm512_set1_epi32(i);
#define PRODUCT(i) sum_##i = _mm512_dpbusd_epi32(sum_##i, x, y);
#define ADD(i) x = _mm512_add_epi32(x, sum_##i);
    REPEAT_16(DECLARE)
    for (int64_t i = 0; i < rounds; i++) {
        REPEAT_16(PRODUCT)
        asm volatile("" : "+v"(x), "+v"(y));  // nothing is known about them, so that nothing is left out
    }
    REPEAT_16(ADD)
    return _mm512_reduce_add_epi32(x);
}

const bool IS_INTEL = (__builtin_cpu_init(), __builtin_cpu_is("intel"));

// Reads all of it, in order; num_bytes is a multiple of 512. Fetched ahead as the kernels do, which is up to a tenth faster.
extern "C" AVX512 int32_t probe_stream(const uint8_t *data, int64_t num_bytes) {
    __m512i sum[8];
    for (int i = 0; i < 8; i++) sum[i] = _mm512_setzero_si512();
    for (int64_t at = 0; at < num_bytes; at += 512)
        for (int i = 0; i < 8; i++) {
            const char *ahead = (const char *)data + at + 64 * i + 4096;
            if (IS_INTEL)
                _mm_prefetch(ahead, _MM_HINT_T0);
            else
                _mm_prefetch(ahead, _MM_HINT_NTA);
            sum[i] = _mm512_xor_si512(sum[i], _mm512_loadu_si512(data + at + 64 * i));
        }
    for (int i = 1; i < 8; i++) sum[0] = _mm512_xor_si512(sum[0], sum[i]);
    return _mm512_reduce_add_epi32(sum[0]);
}
