// One collective op of a program as sends and receives, by the algorithms that lower_collectives.h
// lists.
//
// P = 4, rank 1. [1 2 3 0]: the pieces of these ranks, as they lie in the slot (gather_orders.cpp);
// "1 2 -> 3": sends the pieces 1 and 2 to rank 3; "3 0 <- 3": receives the pieces 3 and 0 from it.
// "2 -> 2": sends rank 2 the piece that is meant for it.
//
//   all_gather
//     ring                 [0 1 2 3]   1 -> 2, 0 <- 0     0 -> 2, 3 <- 0     3 -> 2, 2 <- 0
//     recursive_doubling   [0 1 2 3]   1 -> 0, 0 <- 0     0 1 -> 3, 2 3 <- 3
//     bruck                [1 2 3 0]   1 -> 0, 2 <- 2     1 2 -> 3, 3 0 <- 3
//     hierarchical         [0 2 1 3]   1 -> 3, 3 <- 3     1 3 -> 0, 0 2 <- 0
//       nodes of 2 ranks               across nodes       inside the node
//   all_to_all
//     pairwise             [0 1 2 3]   2 -> 2, 0 <- 0     3 -> 3, 3 <- 3     0 -> 0, 2 <- 2
//     linear               [0 1 2 3]   the same, all at once
//   reduce_scatter: what comes is merged into the own partials
//     ring                 [0 1 2 3]   0 -> 2, 3 <- 0     3 -> 2, 2 <- 0     2 -> 2, 1 <- 0
//     recursive_halving    [0 1 2 3]   2 3 -> 3, 0 1 <- 3   0 -> 0, 1 <- 0
//     linear               [0 1 2 3]   2 -> 2, 3 -> 3, 0 -> 0; 1 from each, merged at the end
#include "schedule/lower_collectives.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "core/check.h"
#include "schedule/collective_choice.h"
#include "schedule/row_map.h"

namespace longnet {
namespace {

class Lowering {
 public:
  Lowering(const ShardedProblem& sharded, RankProgram program, Rank rank,
           const CollectiveChoice& choice)
      : sharded_(sharded), in_(std::move(program)), rank_(rank), choice_(choice) {}

  RankProgram run() {
    // Long programs are not copied for nothing.
    if (std::ranges::none_of(in_.ops, [](const Op& op) { return is_collective(op.what); }))
      return std::move(in_);
    order_gathered_pieces(in_, rank_, choice_);
    out_.pass = in_.pass, out_.scope = in_.scope;
    out_.slots = in_.slots, out_.kept = std::move(in_.kept);
    for (Op& op : in_.ops) {
      std::vector<OpId> after;
      for (OpId a : op.after) {
        merge_late(a);
        after.insert(after.end(), ends_[size_t(a)].begin(), ends_[size_t(a)].end());
      }
      current_.clear();
      lower(op.what, after);
      ends_.push_back(current_.empty() ? after : current_);
    }
    while (!late_.empty()) merge_late(late_.begin()->first);
    return std::move(out_);
  }

 private:
  // ---- one op, which ends when all ops in current_ have ended ----

  void lower(const Action& what, const std::vector<OpId>& after) {
    if (const auto* g = std::get_if<AllGather>(&what)) {
      switch (g->group.count == 1 ? AllGatherAlgorithm::kRing : gather_in(*g, choice_)) {
        case AllGatherAlgorithm::kRing:
          return ring_gather(
              g->group, [&](int member) { return piece_of(g->into, g->group[member]); }, after,
              after);
        case AllGatherAlgorithm::kRecursiveDoubling:
          return doubling_gather(*g, after);
        case AllGatherAlgorithm::kBruck:
          return bruck_gather(g->group, g->into, 0, after);
        case AllGatherAlgorithm::kHierarchical:
          return hierarchical_gather(*g, after);
        default:
          break;
      }
    }
    if (const auto* a = std::get_if<AllToAll>(&what);
        a && choice_.all_to_all != AllToAllAlgorithm::kNative)
      return exchange(*a, after);
    if (const auto* r = std::get_if<ReduceScatter>(&what)) {
      if (r->group.count == 1) return;
      switch (reduce_in(*r, out_.slots[size_t(r->what.slot)].kind, choice_)) {
        case ReduceScatterAlgorithm::kRing:
          return ring_reduce(*r, after);
        case ReduceScatterAlgorithm::kRecursiveHalving:
          return halving_reduce(*r, after);
        case ReduceScatterAlgorithm::kLinear:
          return linear_reduce(*r, after);
        case ReduceScatterAlgorithm::kNative:
          break;
      }
    }
    add(what, after);
  }

  OpId add(Action what, std::vector<OpId> after) {
    std::erase(after, -1);
    return current_.emplace_back(out_.add(std::move(what), std::move(after)));
  }
  // Layers that are the same ask for the same pieces of a branch: counts their rows once.
  int64_t bytes(const SlotView& view) {
    const TensorKind kind = out_.slots.at(size_t(view.slot)).kind;
    if (view.rows.branch < 0) return view_bytes(sharded_, kind, view);
    const auto [known, is_new] = bytes_.try_emplace(std::tuple(kind, view.rows, view.pieces), 0);
    if (is_new) known->second = view_bytes(sharded_, kind, view);
    return known->second;
  }
  // Looks at one piece after the other: the first one decides nearly always, and there are many.
  bool has_rows(const SlotView& view) {
    for (int i = 0; i < view.num_pieces(); ++i)
      if (bytes(view.piece(view.first_piece() + i)) > 0) return true;
    return false;
  }
  // Empty messages are left out on both sides; -1 then.
  OpId send(Rank to, const SlotView& what, std::vector<OpId> after) {
    return has_rows(what) ? add(Send{to, what}, std::move(after)) : -1;
  }
  OpId recv(Rank from, const SlotView& what, std::vector<OpId> after) {
    return has_rows(what) ? add(Recv{from, what}, std::move(after)) : -1;
  }
  static std::vector<OpId> known(std::vector<OpId> ops, const std::vector<OpId>& otherwise) {
    std::erase(ops, -1);
    return ops.empty() ? otherwise : ops;
  }
  // Receives `incoming` once its scratch is free (after op `merged`) and merges it into `into`.
  // Only the merge, not the receive, stays in `current_`.
  OpId recv_and_merge(Rank from, const SlotView& incoming, const SlotView& into, OpId merged,
                      std::vector<OpId> after) {
    const OpId got = recv(from, incoming, {merged});
    if (got < 0) return -1;
    current_.pop_back();
    after.push_back(got);
    return add(Merge{incoming, into}, std::move(after));
  }

  static SlotView piece_of(const SlotView& view, Rank owner) {
    return view.piece(view.rows.owners.index_of(owner));
  }
  // In step s this rank sends the pieces of member me - s to the next member, and receives those of
  // member me - s - 1 from the one before. Its own pieces are ready after the ops `first`; receives
  // may start after the ops `after`.
  template <class PiecesOf>
  void ring_gather(const RankGroup& g, PiecesOf pieces_of, const std::vector<OpId>& first,
                   const std::vector<OpId>& after) {
    const int n = g.count, me = g.index_of(rank_);
    std::vector<OpId> have = first;
    for (int s = 0; s + 1 < n; ++s) {
      send(g[(me + 1) % n], pieces_of((me + n - s) % n), have);
      have = known({recv(g[(me + n - 1) % n], pieces_of((me + 2 * n - s - 1) % n), after)}, first);
    }
  }

  void doubling_gather(const AllGather& op, const std::vector<OpId>& after) {
    const int me = op.group.index_of(rank_);
    std::vector<OpId> have = after;
    for (int size = 1; size < op.group.count; size *= 2) {
      const Rank partner = op.group[me ^ size];
      const int mine = me & ~(size - 1), theirs = mine ^ size;
      send(partner, op.into.range(mine, size), have);
      have.push_back(recv(partner, op.into.range(theirs, size), after));
    }
  }

  // The group's pieces begin at piece `base` of `into`, the own one first. Step k sends the first
  // 2^k of them to the member 2^k places back.
  void bruck_gather(const RankGroup& g, const SlotView& into, int base,
                    const std::vector<OpId>& after) {
    const int n = g.count, me = g.index_of(rank_);
    std::vector<OpId> have = after;
    for (int size = 1; size < n; size *= 2) {
      const int count = std::min(size, n - size);
      send(g[(me + n - size) % n], into.range(base, count), have);
      have.push_back(recv(g[(me + size) % n], into.range(base + size, count), after));
    }
  }

  // Pieces lie by place, then node, from the own node on. First Bruck among equal places, for few
  // latencies of many nodes; then a ring of whole places in the node, where links are fast.
  void hierarchical_gather(const AllGather& op, const std::vector<OpId>& after) {
    const int size = node_size_in(op.group, choice_), nodes = op.group.count / size;
    const int me = op.group.index_of(rank_), place = me % size;
    const RankGroup across{.first = op.group.first + place, .stride = size, .count = nodes};
    bruck_gather(across, op.into, place * nodes, after);
    if (current_.empty()) current_ = after;
    const std::vector<OpId> first = current_;
    const RankGroup inside{.first = op.group.first + me - place, .count = size};
    ring_gather(
        inside, [&](int i) { return op.into.range(i * nodes, nodes); }, first, after);
  }

  void exchange(const AllToAll& op, const std::vector<OpId>& after) {
    const int n = op.group.count, me = op.group.index_of(rank_);
    if (bytes(op.into.piece(me)) > 0) add(Pack{op.from.piece(me), op.into.piece(me)}, after);
    std::vector<OpId> before = after;
    for (int k = 1; k < n; ++k) {
      const int to = (me + k) % n, from = (me + n - k) % n;
      const OpId out = send(op.group[to], op.from.piece(to), before);
      const OpId in = recv(op.group[from], op.into.piece(from), before);
      if (choice_.all_to_all == AllToAllAlgorithm::kPairwise) before = known({out, in}, before);
    }
  }

  int add_scratch(const SlotView& like, int64_t size) {
    out_.slots.push_back({out_.slots[size_t(like.slot)].kind, SlotTag::kPartial, size});
    return int(out_.slots.size()) - 1;
  }
  // A slot that takes the partials of any one member.
  int add_largest_scratch(const SlotView& like) {
    int64_t largest = 0;
    for (int i = 0; i < like.rows.num_pieces(); ++i)
      largest = std::max(largest, bytes(like.piece(i)));
    return add_scratch(like, largest);
  }
  // View of `count` pieces of `whole` from `first` on, in a slot that holds these pieces alone.
  static SlotView alone(const SlotView& whole, int first, int count, int slot) {
    SlotView h{slot, whole.rows};
    if (h.rows.branch == kAllValues) h.rows.within = values_of(whole.range(first, count));
    h.rows.owners = {
        .first = whole.rows.owners[first], .stride = whole.rows.owners.stride, .count = count};
    return h;
  }

  // Step s: partials for member me - s - 1 go on, those for me - s - 2 come and are merged; the
  // last are the own.
  void ring_reduce(const ReduceScatter& op, const std::vector<OpId>& after) {
    const int n = op.group.count, me = op.group.index_of(rank_);
    const int scratch = add_largest_scratch(op.what);
    std::vector<OpId> have = after;
    OpId merged = -1;
    for (int s = 0; s + 1 < n; ++s) {
      const int out = (me + 2 * n - s - 1) % n, in = (me + 2 * n - s - 2) % n;
      send(op.group[(me + 1) % n], piece_of(op.what, op.group[out]), have);
      const SlotView own = piece_of(op.what, op.group[in]);
      const SlotView incoming = alone(op.what, own.first_piece(), 1, scratch);
      const OpId done = recv_and_merge(op.group[(me + n - 1) % n], incoming, own, merged, after);
      if (done >= 0) merged = done;
      have = known({done}, after);
    }
  }

  // The range that still concerns this member halves: the other half goes to the partner across it.
  void halving_reduce(const ReduceScatter& op, const std::vector<OpId>& after) {
    const int n = op.group.count, me = op.group.index_of(rank_);
    // Every incoming message holds partials of the own half or of a part of it.
    const int scratch = add_scratch(op.what, bytes(op.what.range(me & ~(n / 2 - 1), n / 2)));
    std::vector<OpId> have = after;
    OpId merged = -1;
    for (int size = n / 2; size >= 1; size /= 2) {
      const int mine = me & ~(size - 1), theirs = mine ^ size;
      const Rank partner = op.group[me ^ size];
      send(partner, op.what.range(theirs, size), have);
      const SlotView incoming = alone(op.what, mine, size, scratch);
      const OpId done = recv_and_merge(partner, incoming, op.what.range(mine, size), merged, have);
      if (done >= 0) merged = done;
      have = known({done}, have);
    }
  }

  // Each piece goes straight to its owner. Incoming pieces are added when an op needs the sum.
  // Receives have the order of the sends, so that all ranks do the same.
  void linear_reduce(const ReduceScatter& op, const std::vector<OpId>& after) {
    const int n = op.group.count, me = op.group.index_of(rank_);
    const SlotView own = piece_of(op.what, rank_);
    for (int k = 1; k < n; ++k)
      send(op.group[(me + k) % n], piece_of(op.what, op.group[(me + k) % n]), after);
    if (bytes(own) == 0) return;
    SlotView pieces{add_scratch(own, (n - 1) * bytes(own)), own.rows};
    pieces.rows.owners = {.first = rank_, .stride = 0, .count = n - 1};
    std::vector<OpId> ready = after;
    for (int k = 1; k < n; ++k) {
      const int from = (me + n - k) % n;
      ready.push_back(recv(op.group[from], pieces.piece(from < me ? from : from - 1), {}));
    }
    late_[OpId(ends_.size())] = {Merge{pieces, own}, std::move(ready)};
  }
  void merge_late(OpId reduced) {
    auto late = late_.extract(reduced);
    if (late.empty()) return;
    Op& merge = late.mapped();
    ends_[size_t(reduced)].push_back(add(std::move(merge.what), std::move(merge.after)));
  }

  const ShardedProblem& sharded_;
  RankProgram in_, out_;
  Rank rank_;
  CollectiveChoice choice_;
  std::vector<std::vector<OpId>> ends_;  // last ops of each op of the input
  std::vector<OpId> current_;            // last ops of the op that is being lowered
  std::map<OpId, Op> late_;              // merges of linear reduce_scatters that are still to come
  std::map<std::tuple<TensorKind, Slice, PieceRange>, int64_t> bytes_;
};

}  // namespace

RankProgram lower_collectives(const ShardedProblem& sharded, RankProgram program, Rank rank,
                              const CollectiveChoice& choice) {
  return Lowering(sharded, std::move(program), rank, choice).run();
}

Schedule lower_collectives(Schedule schedule, const CollectiveChoice& choice) {
  for (auto* program : {&schedule.program, &schedule.forward})
    if (*program)
      *program = [make = std::move(*program), choice, sharded = schedule.sharded](Rank r) {
        return lower_collectives(sharded, make(r), r, choice);
      };
  return schedule;
}

}  // namespace longnet
