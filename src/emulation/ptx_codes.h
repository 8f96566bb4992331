// Instructions by number.
#pragma once
#include "emulation/ptx_program.h"

namespace longnet::ptx {

enum Code : int {
  kMov,
  kPack,
  kUnpack,
  kAdd,
  kSub,
  kMulLo,
  kMulHi,
  kMulWide,
  kDiv,
  kRem,
  kMin,
  kMax,
  kAbs,
  kNeg,
  kAnd,
  kOr,
  kXor,
  kNot,
  kShl,
  kShr,
  kFma,
  kSetp,
  kSelp,
  kCvt,
  kCvtPair,
  kCvta,
  kBfi,
  kEx2,
  kShuffle,
  kVoteAny,
  kLastArithmetic = kVoteAny,
  kLoad,
  kStore,
  kAtomicAdd,
  kBranch,
  kReturn,
  kTrap,
  kNothing,
  kGroupFence,
  kProxyFence,
  kMapFence,
  kBarSync,
  kBarArrive,
  kWarpSync,
  kMma,
  kLdmatrix,
  kCopyAsync,
  kCommitCopies,
  kWaitCopies,
  kBarrierInit,
  kBarrierArrive,
  kBarrierExpect,
  kBarrierTry,
  kBulkCopy,
  kWgmma,
  kWgmmaCommit,
  kWgmmaWait
};

// Throws Error with the line where the instruction, or a modifier of it, is not known here.
Code code_of(const PtxInstruction& in);
// Those that a whole warp executes together.
bool takes_whole_warp(int code);

}  // namespace longnet::ptx
