// Included before <hwy/highway.h> in each file of this folder: the instruction sets to compile for.
// On x86: AVX-512 ("AVX3"), AVX2 and, for CPUs without either, plain scalar code; SSE has no FMA.
// Vectors of unknown size (SVE, RVV) cannot be in arrays, which the register tiles need.
#pragma once

#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#define HWY_BROKEN_EMU128 1  // as GCC 12's is: SCALAR takes its place whatever the compiler
