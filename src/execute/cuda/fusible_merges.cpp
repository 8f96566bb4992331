#include "execute/cuda/fusible_merges.h"

#include <algorithm>

namespace longnet {
namespace {

// Does the op touch the slot at all?
bool touches(const Op& op, int slot) {
  const auto any = [&](auto&... held) { return ((held.slot == slot) || ...); };
  return std::visit(Overload{[&](const Pack& o) { return any(o.from, o.into); },
                             [&](const Send& o) { return any(o.what); },
                             [&](const Recv& o) { return any(o.what); },
                             [&](const AllGather& o) { return any(o.into); },
                             [&](const AllToAll& o) { return any(o.from, o.into); },
                             [&](const ReduceScatter& o) { return any(o.what); },
                             [&](const Attend& o) { return any(o.q, o.kv, o.into); },
                             [&](const Merge& o) { return any(o.from, o.into); },
                             [&](const Reset& o) { return any(o.into); }},
                    op.what);
}

bool depends_on(const Op& op, OpId other) {
  return std::find(op.after.begin(), op.after.end(), other) != op.after.end();
}

}  // namespace

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
