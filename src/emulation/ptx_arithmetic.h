// Instructions that touch nothing but a warp's registers.
#pragma once
#include "emulation/ptx_warp.h"

namespace longnet::ptx {

// in.code is at most kLastArithmetic; `mask`: the lanes that take part. Throws Error for what is
// not done for its types.
void execute_arithmetic(Warp& warp, const PtxInstruction& in, uint32_t mask);

// The bits of `value` for the lanes of `mask`; others keep theirs.
void set_predicate(Warp& warp, PtxRow row, uint32_t mask, uint32_t value);

}  // namespace longnet::ptx
