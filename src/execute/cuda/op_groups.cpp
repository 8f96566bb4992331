#include "execute/cuda/op_groups.h"

#include <algorithm>

namespace longnet {
namespace {

bool depends_on(const Op& op, OpId other) { return std::ranges::count(op.after, other) > 0; }

bool touches(const Op& op, int slot) {
  bool any = false;
  for_each_view(op.what, [&](const SlotView& view, bool) { any = any || view.slot == slot; });
  return any;
}

}  // namespace

std::vector<CommRound> comm_rounds(const RankProgram& program) {
  std::vector<CommRound> rounds;
  CommRound open;
  const auto close = [&] {
    if (!open.empty()) rounds.push_back(std::move(open));
    open.clear();
  };
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    if (std::ranges::any_of(open, [&](OpId before) { return depends_on(op, before); })) close();
    if (!is_communication(op.what)) continue;
    const bool alone = std::holds_alternative<AllGather>(op.what);
    if (alone) close();
    open.push_back(OpId(i));
    if (alone) close();
  }
  close();
  return rounds;
}

std::map<OpId, OpId> fusible_merges(const RankProgram& program) {
  std::map<OpId, OpId> pairs;
  for (size_t j = 0; j < program.ops.size(); ++j) {
    const auto* const merge = std::get_if<Merge>(&program.ops[j].what);
    if (merge == nullptr || merge->from.slot == merge->into.slot) continue;
    // The last op before it that touches the partial must be the one attend that writes it.
    size_t i = j;
    while (i > 0 && !touches(program.ops[i - 1], merge->from.slot)) --i;
    if (i == 0) continue;
    const auto* const attend = std::get_if<Attend>(&program.ops[i - 1].what);
    if (attend == nullptr || attend->into.slot != merge->from.slot) continue;
    const OpId attend_id = OpId(i - 1);
    bool free = depends_on(program.ops[j], attend_id);
    for (size_t between = i; between < j; ++between)
      free = free && !depends_on(program.ops[between], attend_id);
    if (free) pairs[OpId(j)] = attend_id;
  }
  return pairs;
}

}  // namespace longnet
