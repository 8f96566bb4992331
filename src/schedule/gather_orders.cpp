// The order in which the pieces of a gathered slot lie. Bruck's and hierarchical gathers send
// ranges of pieces, which takes an order of each rank's own.
//
//   P = 4, pieces by their owners     ring, doubling   bruck     hierarchical, nodes of 2
//                            rank 0   0 1 2 3          0 1 2 3   0 2 1 3
//                            rank 1   0 1 2 3          1 2 3 0   0 2 1 3
//                            rank 2   0 1 2 3          2 3 0 1   2 0 3 1
//                            rank 3   0 1 2 3          3 0 1 2   2 0 3 1
#include <algorithm>

#include "core/check.h"
#include "schedule/collective_choice.h"

namespace longnet {
namespace {

RankGroup ordered(const AllGather& op, Rank rank, const CollectiveChoice& choice) {
  const RankGroup& g = op.group;
  const AllGatherAlgorithm algorithm = gather_in(op, choice);
  RankGroup o = g;
  if (algorithm == AllGatherAlgorithm::kBruck) o.rotation = g.index_of(rank);
  if (algorithm != AllGatherAlgorithm::kHierarchical) return o;
  const int node_size = node_size_in(g, choice);
  return {.first = g.first,
          .stride = node_size,
          .count = g.count,
          .inner_count = g.count / node_size,
          .outer_stride = 1,
          .inner_rotation = g.index_of(rank) / node_size};
}

}  // namespace

void order_gathered_pieces(RankProgram& program, Rank rank, const CollectiveChoice& choice) {
  if (choice.all_gather == AllGatherAlgorithm::kNative) return;
  using Order = std::pair<Slice, RankGroup>;
  std::vector<std::vector<Order>> orders(program.slots.size());  // by slot
  // Layers gather the same rows into the same slot.
  const auto add_order = [&](const SlotView& view, const RankGroup& order) {
    std::vector<Order>& here = orders.at(size_t(view.slot));
    if (std::ranges::find(here, view.rows, &Order::first) == here.end())
      here.push_back({view.rows, order});
  };
  for (const Op& op : program.ops)
    if (const auto* g = std::get_if<AllGather>(&op.what))
      add_order(g->into, ordered(*g, rank, choice));
  for (const Kept& kept : program.kept)  // the forward pass has gathered them
    if (program.slots[size_t(kept.view.slot)].tag == SlotTag::kGathered)
      add_order(kept.view, ordered({kept.view.rows.owners, kept.view}, rank, choice));
  const std::vector<std::vector<Order>> gathers = orders;
  for (const Op& op : program.ops)  // gradients lie as their keys and queries do
    if (const auto* b = std::get_if<AttendBackward>(&op.what))
      for (const auto& [view, gradient] :
           {std::pair{b->q, b->into_q}, std::pair{b->kv, b->into_kv}})
        for (const auto& [rows, order] : gathers.at(size_t(view.slot)))
          if (rows == view.rows) add_order(gradient, order);
  const auto reorder = [&](SlotView& view) {
    for (const auto& [rows, order] : orders.at(size_t(view.slot))) {
      if (view.rows != rows) continue;
      const RankGroup before = view.rows.owners;
      view.rows.owners = order;
      if (view.pieces == PieceRange{}) return;
      check(view.num_pieces() == 1 && view.rows.head_parts == 1,
            "only single pieces can be reordered");
      view.pieces.first = order.index_of(before[view.first_piece()]);
      return;
    }
  };
  for (Op& op : program.ops) for_each_view(op.what, [&](SlotView& view, bool) { reorder(view); });
  for (Kept& kept : program.kept) reorder(kept.view);
}

}  // namespace longnet
