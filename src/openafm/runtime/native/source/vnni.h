// Products of bytes in vectors of 64 bytes.
#pragma once
#include <immintrin.h>

namespace {

// sum += products of bytes, four by four. Written out: of many sums in a loop, compilers copy each with the intrinsic.
inline void add_products(__m512i &sum, __m512i unsigned_bytes, __m512i signed_bytes) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(unsigned_bytes), "v"(signed_bytes));
}

}  // namespace
