#include "schedule/lower_collectives.h"

#include <algorithm>

#include "core/check.h"
#include "schedule/row_map.h"

namespace longnet {
namespace {

bool is_collective(const Action& a) {
  return std::holds_alternative<AllGather>(a) || std::holds_alternative<AllToAll>(a) ||
         std::holds_alternative<ReduceScatter>(a);
}

class Lowering {
 public:
  Lowering(const ShardedProblem& sharded, RankProgram program, Rank rank,
           const CollectiveChoice& choice)
      : sharded_(sharded), in_(std::move(program)), rank_(rank), choice_(choice) {}

  RankProgram run() {
    // Long programs are not copied for nothing.
    if (std::ranges::none_of(in_.ops, [](const Op& op) { return is_collective(op.what); }))
      return std::move(in_);
    choose_orders();
    out_.slots = in_.slots;
    for (Op& op : in_.ops) {
      std::vector<OpId> after;
      for (OpId a : op.after)
        after.insert(after.end(), ends_[size_t(a)].begin(), ends_[size_t(a)].end());
      ends_.push_back(lower(op.what, after));
    }
    return std::move(out_);
  }

 private:
  // ---- orders of pieces: some algorithms want the gathered pieces in another one ----

  AllGatherAlgorithm algorithm_for(const RankGroup& g) const { return gather_in(g, choice_); }
  int node_size(const RankGroup& g) const { return node_size_in(g, choice_); }
  RankGroup ordered(const RankGroup& g) const {
    RankGroup o = g;
    if (algorithm_for(g) == AllGatherAlgorithm::kBruck) o.rotation = g.index_of(rank_);
    if (algorithm_for(g) == AllGatherAlgorithm::kHierarchical)
      o = {.first = g.first,
           .stride = node_size(g),
           .count = g.count,
           .inner_count = g.count / node_size(g),
           .outer_stride = 1,
           .inner_rotation = g.index_of(rank_) / node_size(g)};
    return o;
  }

  // A gathered slot's pieces lie in the order of its gather wherever the program names them.
  void choose_orders() {
    if (choice_.all_gather == AllGatherAlgorithm::kNative) return;
    std::vector<std::pair<SlotView, RankGroup>> orders;
    for (const Op& op : in_.ops)
      if (const auto* g = std::get_if<AllGather>(&op.what))
        orders.push_back({g->into, ordered(g->group)});
    const auto reorder = [&](SlotView& held) {
      for (const auto& [gathered, order] : orders) {
        if (held.slot != gathered.slot || held.rows != gathered.rows) continue;
        const RankGroup before = held.rows.owners;
        held.rows.owners = order;
        if (held.pieces == PieceRange{}) return;
        check(held.num_pieces() == 1 && held.rows.head_parts == 1,
              "only single pieces can be reordered");
        held.pieces.first = order.index_of(before[held.first_piece()]);
        return;
      }
    };
    for (Op& op : in_.ops)
      std::visit(Overload{
                     [&](Pack& o) { reorder(o.from), reorder(o.into); },
                     [&](Attend& o) { reorder(o.q), reorder(o.kv); },
                     [&](AllGather& o) { reorder(o.into); },
                     [](auto&) {},
                 },
                 op.what);
  }

  // ---- one op: returns the ops that end it ----

  std::vector<OpId> lower(const Action& what, const std::vector<OpId>& after) {
    if (const auto* g = std::get_if<AllGather>(&what)) {
      switch (g->group.count == 1 ? AllGatherAlgorithm::kRing : algorithm_for(g->group)) {
        case AllGatherAlgorithm::kRing:
          return ring_gather(g->group, g->into, after);
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
      return reduce_in(r->group, choice_) == ReduceScatterAlgorithm::kRecursiveHalving
                 ? halving_reduce(*r, after)
                 : ring_reduce(*r, after);
    }
    return {add(what, after)};
  }

  OpId add(Action what, std::vector<OpId> after) {
    std::erase(after, -1);
    out_.ops.push_back({std::move(what), std::move(after)});
    return OpId(out_.ops.size()) - 1;
  }
  int64_t bytes(const SlotView& held) const {
    return held_bytes(sharded_, out_.slots.at(size_t(held.slot)).kind, held);
  }
  // Nothing travels when there is nothing: both sides know.
  OpId send(Rank to, const SlotView& what, std::vector<OpId> after) {
    return bytes(what) > 0 ? add(Send{to, what}, std::move(after)) : -1;
  }
  OpId recv(Rank from, const SlotView& what, std::vector<OpId> after) {
    return bytes(what) > 0 ? add(Recv{from, what}, std::move(after)) : -1;
  }
  static std::vector<OpId> known(std::vector<OpId> ops, const std::vector<OpId>& otherwise) {
    std::erase(ops, -1);
    return ops.empty() ? otherwise : ops;
  }
  static std::vector<OpId> joined(std::vector<OpId> a, const std::vector<OpId>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }

  // Step s: piece (me - s) goes to the next member, piece (me - s - 1) comes from the one before.
  std::vector<OpId> ring_gather(const RankGroup& g, const SlotView& into,
                                const std::vector<OpId>& after) {
    const int n = g.count, me = g.index_of(rank_);
    std::vector<OpId> ends, have = after;
    for (int s = 0; s + 1 < n; ++s) {
      const int out = (me + n - s) % n, in = (me + 2 * n - s - 1) % n;
      ends.push_back(send(g[(me + 1) % n], piece_of(into, g, out), have));
      const OpId got = recv(g[(me + n - 1) % n], piece_of(into, g, in), after);
      ends.push_back(got);
      have = known({got}, after);
    }
    return known(ends, after);
  }
  SlotView piece_of(const SlotView& into, const RankGroup& g, int member) const {
    return into.piece(into.rows.owners.index_of(g[member]));
  }

  std::vector<OpId> doubling_gather(const AllGather& op, const std::vector<OpId>& after) {
    const int me = op.group.index_of(rank_);
    std::vector<OpId> ends, have = after;
    for (int size = 1; size < op.group.count; size *= 2) {
      const Rank partner = op.group[me ^ size];
      const int mine = me & ~(size - 1), theirs = mine ^ size;
      ends.push_back(send(partner, op.into.range(mine, size), have));
      const OpId got = recv(partner, op.into.range(theirs, size), after);
      ends.push_back(got);
      if (got >= 0) have.push_back(got);
    }
    return known(ends, after);
  }

  // The group's pieces are those of `into` from `base` on and begin at the own one: step k sends
  // the first 2^k of them 2^k members back.
  std::vector<OpId> bruck_gather(const RankGroup& g, const SlotView& into, int base,
                                 const std::vector<OpId>& after) {
    const int n = g.count, me = g.index_of(rank_);
    std::vector<OpId> ends, have = after;
    for (int size = 1; size < n; size *= 2) {
      const int count = std::min(size, n - size);
      ends.push_back(send(g[(me + n - size) % n], into.range(base, count), have));
      const OpId got = recv(g[(me + size) % n], into.range(base + size, count), after);
      ends.push_back(got);
      if (got >= 0) have.push_back(got);
    }
    return known(ends, after);
  }

  // Pieces lie by place, then node, from the own node on. First Bruck among equal places, so that
  // the many nodes cost few latencies; then a ring of whole places in the node, where links are
  // fast.
  std::vector<OpId> hierarchical_gather(const AllGather& op, const std::vector<OpId>& after) {
    const int g = node_size(op.group), nodes = op.group.count / g;
    const int me = op.group.index_of(rank_), node = me / g, place = me % g;
    const RankGroup across{.first = op.group.first + place, .stride = g, .count = nodes};
    const std::vector<OpId> first = bruck_gather(across, op.into, place * nodes, after);
    std::vector<OpId> ends = first, have = first;
    for (int s = 0; s + 1 < g; ++s) {
      const int out = (place + g - s) % g, in = (place + 2 * g - s - 1) % g;
      ends.push_back(
          send(op.group[node * g + (place + 1) % g], op.into.range(out * nodes, nodes), have));
      const OpId got =
          recv(op.group[node * g + (place + g - 1) % g], op.into.range(in * nodes, nodes), after);
      ends.push_back(got);
      have = known({got}, first);
    }
    return known(ends, after);
  }

  std::vector<OpId> exchange(const AllToAll& op, const std::vector<OpId>& after) {
    const int n = op.group.count, me = op.group.index_of(rank_);
    std::vector<OpId> ends;
    if (bytes(op.into.piece(me)) > 0)
      ends.push_back(add(Pack{op.from.piece(me), op.into.piece(me)}, after));
    std::vector<OpId> before = after;
    for (int k = 1; k < n; ++k) {
      const int to = (me + k) % n, from = (me + n - k) % n;
      const OpId out = send(op.group[to], op.from.piece(to), before);
      const OpId in = recv(op.group[from], op.into.piece(from), before);
      ends.insert(ends.end(), {out, in});
      if (choice_.all_to_all == AllToAllAlgorithm::kPairwise) before = known({out, in}, before);
    }
    return known(ends, after);
  }

  // A slot that takes the partials of `count` members, the largest such range.
  int add_scratch(const SlotView& like, int count) {
    int64_t largest = 0;
    for (int first = 0; first + count <= like.rows.num_pieces(); ++first)
      largest = std::max(largest, bytes(like.range(first, count)));
    out_.slots.push_back({TensorKind::kPartial, SlotTag::kPartial, largest});
    return int(out_.slots.size()) - 1;
  }
  // The same pieces, laid out alone.
  static SlotView alone(const SlotView& whole, int first, int count, int slot) {
    SlotView h{slot, whole.rows};
    h.rows.owners = {
        .first = whole.rows.owners[first], .stride = whole.rows.owners.stride, .count = count};
    return h;
  }

  // Step s: partials for member me - s - 1 go on, those for me - s - 2 come and are merged; the
  // last are the own.
  std::vector<OpId> ring_reduce(const ReduceScatter& op, const std::vector<OpId>& after) {
    const int n = op.group.count, me = op.group.index_of(rank_);
    if (n == 1) return after;
    const int scratch = add_scratch(op.what, 1);
    std::vector<OpId> ends, have = after;
    OpId merged = -1;
    for (int s = 0; s + 1 < n; ++s) {
      const int out = (me + 2 * n - s - 1) % n, in = (me + 2 * n - s - 2) % n;
      ends.push_back(send(op.group[(me + 1) % n], op.what.piece(out), have));
      const SlotView incoming = alone(op.what, in, 1, scratch);
      const OpId got = recv(op.group[(me + n - 1) % n], incoming, {merged});
      if (got >= 0) {
        merged = add(Merge{incoming, op.what.piece(in)}, joined({got}, after));
        ends.push_back(merged);
      }
      have = got >= 0 ? std::vector<OpId>{merged} : after;
    }
    return known(ends, after);
  }

  // The range that still concerns this member halves: the other half goes to the partner across it.
  std::vector<OpId> halving_reduce(const ReduceScatter& op, const std::vector<OpId>& after) {
    const int n = op.group.count, me = op.group.index_of(rank_);
    if (n == 1) return after;
    const int scratch = add_scratch(op.what, n / 2);
    std::vector<OpId> ends, have = after;
    OpId merged = -1;
    for (int size = n / 2; size >= 1; size /= 2) {
      const int mine = me & ~(size - 1), theirs = mine ^ size;
      const Rank partner = op.group[me ^ size];
      ends.push_back(send(partner, op.what.range(theirs, size), have));
      const SlotView incoming = alone(op.what, mine, size, scratch);
      const OpId got = recv(partner, incoming, {merged});
      if (got >= 0) {
        merged = add(Merge{incoming, op.what.range(mine, size)}, joined(have, {got}));
        have = {merged};
        ends.push_back(merged);
      }
    }
    return known(ends, after);
  }

  const ShardedProblem& sharded_;
  RankProgram in_, out_;
  Rank rank_;
  CollectiveChoice choice_;
  std::vector<std::vector<OpId>> ends_;  // of each op of the input
};

}  // namespace

RankProgram lower_collectives(const ShardedProblem& sharded, RankProgram program, Rank rank,
                              const CollectiveChoice& choice) {
  return Lowering(sharded, std::move(program), rank, choice).run();
}

Schedule lower_collectives(Schedule schedule, const CollectiveChoice& choice) {
  auto make = std::move(schedule.program);
  schedule.program = [make, choice, sharded = schedule.sharded](Rank r) {
    return lower_collectives(sharded, make(r), r, choice);
  };
  return schedule;
}

}  // namespace longnet
