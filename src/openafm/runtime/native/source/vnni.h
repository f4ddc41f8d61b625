// Products of bytes in vectors of 64 bytes.
#pragma once
#include <immintrin.h>

namespace {

// sum += groups of four products of bytes. Assembly, because compilers copy each of many sums in a loop with the intrinsic.
inline void add_products(__m512i &sum, __m512i unsigned_bytes, __m512i signed_bytes) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(unsigned_bytes), "v"(signed_bytes));
}

}  // namespace
