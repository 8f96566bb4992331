// Matrices: what tensor cores and their loads do, by the PTX manual's pictures of fragments.
#pragma once
#include "emulation/ptx_shared.h"
#include "emulation/ptx_warp.h"

namespace longnet::ptx {

// Byte of shared memory for byte `at` of a 128-byte swizzle: bits 4 to 6 xor bits 7 to 9 of the
// address.
inline uint64_t swizzled(uint64_t at) { return at ^ (at >> 7 & 7) << 4; }

void multiply(Warp& warp, const PtxInstruction& in);                             // mma.m16n8k16
void load_matrices(Warp& warp, const PtxInstruction& in, SharedMemory& shared);  // ldmatrix.x4

// Operands of a wgmma instruction other than registers, with their values at issue.
struct GroupProduct {
  bool from_registers = false;             // A
  uint64_t a = 0, b = 0;                   // matrix descriptors
  bool add = false, b_along_rows = false;  // ... or B's columns are the rows of shared memory
};
// Throws Error where lanes do not agree, or a wgmma.fence is missing.
GroupProduct group_product(Warp& warp, const PtxInstruction& in);
void group_multiply(Warp& warp, const PtxInstruction& in, const GroupProduct& product,
                    SharedMemory& shared);  // wgmma.m64nNk16

}  // namespace longnet::ptx
