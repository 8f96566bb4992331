#include "emulation/ptx_codes.h"

#include <algorithm>
#include <cctype>
#include <map>

#include "core/check.h"

namespace longnet::ptx {
namespace {

Code find_code(const PtxInstruction& in) {
  const std::string& name = in.words[0];
  const auto is = [&](std::string_view prefix) { return in.op.starts_with(prefix); };
  if (name == "mov") {
    if (!in.operands.at(0).parts.empty()) return kUnpack;
    return in.operands.at(1).parts.empty() ? kMov : kPack;
  }
  if (is("cvta.shared") || is("cvta.to.shared"))
    throw Error(concat("PTX line ", in.line, ": no instruction ", in.op));
  if (is("mul.wide")) return kMulWide;
  if (is("mul.hi")) return kMulHi;
  if (is("cvt.") && (in.has("bf16x2") || in.has("f16x2"))) return kCvtPair;
  if (is("bar.warp.sync")) return kWarpSync;
  if (is("bar.sync") || is("barrier.sync")) return kBarSync;
  if (is("bar.arrive") || is("barrier.arrive")) return kBarArrive;
  if (is("mma.sync.aligned.m16n8k16.row.col.f32.")) return kMma;
  if (is("ldmatrix.sync.aligned.m8n8.x4.") && in.has("b16")) return kLdmatrix;
  if (is("cp.async.cg.shared.global")) return kCopyAsync;
  if (is("cp.async.commit_group")) return kCommitCopies;
  if (is("cp.async.wait_group")) return kWaitCopies;
  if (is("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"))
    return kBulkCopy;
  if (is("mbarrier.init.shared::cta.b64")) return kBarrierInit;
  if (is("mbarrier.arrive.expect_tx.shared::cta.b64")) return kBarrierExpect;
  if (is("mbarrier.arrive.shared::cta.b64")) return kBarrierArrive;
  if (is("mbarrier.try_wait.parity.shared::cta.b64")) return kBarrierTry;
  if (is("wgmma.mma_async.sync.aligned.m64n")) return kWgmma;
  if (is("wgmma.commit_group")) return kWgmmaCommit;
  if (is("wgmma.wait_group")) return kWgmmaWait;
  if (is("wgmma.fence.sync.aligned")) return kGroupFence;
  if (is("fence.proxy.async.shared::cta") || is("fence.mbarrier_init.release.cluster"))
    return kProxyFence;
  if (is("fence.proxy.tensormap::generic.acquire.sys")) return kMapFence;
  if (is("fence.") || is("setmaxnreg.")) return kNothing;
  if (is("ex2.approx.ftz.f32")) return kEx2;
  if (is("shfl.sync.")) return kShuffle;
  if (is("vote.sync.any.pred")) return kVoteAny;
  if (is("atom.global.add.u64")) return kAtomicAdd;
  static const std::map<std::string_view, Code> plain{
      {"add", kAdd},   {"sub", kSub},    {"mul", kMulLo}, {"div", kDiv},    {"rem", kRem},
      {"min", kMin},   {"max", kMax},    {"abs", kAbs},   {"neg", kNeg},    {"and", kAnd},
      {"or", kOr},     {"xor", kXor},    {"not", kNot},   {"shl", kShl},    {"shr", kShr},
      {"fma", kFma},   {"setp", kSetp},  {"selp", kSelp}, {"cvt", kCvt},    {"cvta", kCvta},
      {"ld", kLoad},   {"st", kStore},   {"bfi", kBfi},   {"bra", kBranch}, {"ret", kReturn},
      {"trap", kTrap}, {"exit", kReturn}};
  const auto found = plain.find(name);
  if (found == plain.end()) throw Error(concat("PTX line ", in.line, ": no instruction ", in.op));
  return found->second;
}

// Only modifiers whose meaning is done below may stand in an instruction.
void require_known_words(const PtxInstruction& in, Code code) {
  static const std::vector<std::string_view> known{
      "rn", "rm",     "lo",     "hi",    "wide",  "eq",  "ne",  "lt",  "le",
      "gt", "ge",     "equ",    "neu",   "ltu",   "leu", "gtu", "geu", "sat",
      "to", "global", "shared", "param", "local", "v2",  "v4",  "uni", "pred"};
  const bool checked = code <= kCvta || code == kLoad || code == kStore || code == kBranch;
  for (size_t i = 1; checked && i < in.words.size(); ++i) {
    const std::string& w = in.words[i];
    const bool type =
        w.size() <= 4 && w.size() >= 2 && std::isdigit(static_cast<unsigned char>(w[1])) != 0;
    if (!type && w != "bf16x2" && w != "f16x2" &&
        std::find(known.begin(), known.end(), w) == known.end())
      throw Error(concat("PTX line ", in.line, ": '", w, "' of ", in.op, " is not known here"));
  }
}

}  // namespace

Code code_of(const PtxInstruction& in) {
  const Code code = find_code(in);
  const auto only = [&](std::string_view word, bool fits) {
    if (in.has(word) && !fits)
      throw Error(concat("PTX line ", in.line, ": '", word, "' of ", in.op, " is not done here"));
  };
  only("rm", code == kFma);
  only("sat", in.op == "cvt.sat.f32.f32");
  only("b64", code != kBfi);
  only("f16", code != kSetp);
  if (in.second.at >= 0 && code != kShuffle)
    throw Error(concat("PTX line ", in.line, ": a second result of ", in.op));
  if (code == kVoteAny && in.operands.at(1).negated)
    throw Error(concat("PTX line ", in.line, ": a negated operand of ", in.op));
  require_known_words(in, code);
  return code;
}

bool takes_whole_warp(int code) {
  switch (code) {
    case kShuffle:
    case kVoteAny:
    case kBarSync:
    case kBarArrive:
    case kWarpSync:
    case kMma:
    case kLdmatrix:
    case kWgmma:
    case kWgmmaCommit:
    case kWgmmaWait:
      return true;
    default:
      return false;
  }
}

}  // namespace longnet::ptx
