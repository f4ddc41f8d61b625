// NEON with dot-product instructions: ARMv8.2 with dotprod, such as Apple's and most server processors.
#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
#include "neon.h"

#if defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
static bool is_supported() { return getauxval(AT_HWCAP) & HWCAP_ASIMDDP; }
#else
static bool is_supported() { return true; }
#endif

const Kernels neon_dot_kernels = {"neon-dot", is_supported,  low_bit, grouped, full, round_row, rms_norm,
    swiglu, prepare_query, attend_page, adapter_in, adapter_out, attend_full, layer_norm, gelu, soften_row};
#endif
