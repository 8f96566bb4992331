#include "execute/cuda/comm_rounds.h"

#include <algorithm>

namespace longnet {
namespace {

bool depends_on(const Op& op, const std::vector<OpId>& others) {
  return std::any_of(op.after.begin(), op.after.end(), [&](OpId a) {
    return std::find(others.begin(), others.end(), a) != others.end();
  });
}

}  // namespace

std::vector<CommRound> comm_rounds(const RankProgram& program) {
  std::vector<CommRound> rounds;
  CommRound open;
  const auto close = [&] {
    if (!open.ops.empty()) rounds.push_back(std::move(open));
    open = {};
  };
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    if (depends_on(op, open.ops)) close();
    if (!is_communication(op.what)) continue;
    const bool alone = std::holds_alternative<AllGather>(op.what);
    if (alone) close();
    open.ops.push_back(OpId(i));
    if (alone) close();
  }
  close();
  return rounds;
}

}  // namespace longnet
