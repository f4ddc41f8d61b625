// NEON for every 64-bit ARM processor.
#if defined(__aarch64__)
#include "neon.h"

static bool always() { return true; }

const Kernels neon_kernels = {"neon", always,        low_bit, grouped, full, round_row, rms_norm,
    swiglu, prepare_query, attend_page, adapter_in, adapter_out, attend_full, layer_norm, gelu, soften_row};
#endif
