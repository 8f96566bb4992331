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
      current_.clear();
      lower(op.what, after);
      ends_.push_back(current_.empty() ? after : current_);
    }
    return std::move(out_);
  }

 private:
  // ---- orders of the gathered pieces: Bruck and hierarchical need their own ----

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
    const auto reorder = [&](SlotView& view) {
      for (const auto& [gathered, order] : orders) {
        if (view.slot != gathered.slot || view.rows != gathered.rows) continue;
        const RankGroup before = view.rows.owners;
        view.rows.owners = order;
        if (view.pieces == PieceRange{}) return;
        check(view.num_pieces() == 1 && view.rows.head_parts == 1,
              "only single pieces can be reordered");
        view.pieces.first = order.index_of(before[view.first_piece()]);
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

  // ---- one op, which ends when all ops in current_ have ended ----

  void lower(const Action& what, const std::vector<OpId>& after) {
    if (const auto* g = std::get_if<AllGather>(&what)) {
      switch (g->group.count == 1 ? AllGatherAlgorithm::kRing : algorithm_for(g->group)) {
        case AllGatherAlgorithm::kRing:
          return ring_gather(*g, after);
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
      return reduce_in(r->group, choice_) == ReduceScatterAlgorithm::kRecursiveHalving
                 ? halving_reduce(*r, after)
                 : ring_reduce(*r, after);
    }
    add(what, after);
  }

  OpId add(Action what, std::vector<OpId> after) {
    std::erase(after, -1);
    out_.ops.push_back({std::move(what), std::move(after)});
    current_.push_back(OpId(out_.ops.size()) - 1);
    return current_.back();
  }
  int64_t bytes(const SlotView& view) const {
    return view_bytes(sharded_, out_.slots.at(size_t(view.slot)).kind, view);
  }
  // Empty messages are left out on both sides; -1 then.
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
  // Receives `incoming` once its scratch is free (after op `merged`) and merges it into `into`, of
  // which it is the only end.
  OpId recv_and_merge(Rank from, const SlotView& incoming, const SlotView& into, OpId merged,
                      std::vector<OpId> after) {
    const OpId got = recv(from, incoming, {merged});
    if (got < 0) return -1;
    current_.pop_back();
    after.push_back(got);
    return add(Merge{incoming, into}, std::move(after));
  }

  // Step s: piece (me - s) goes to the next member, piece (me - s - 1) comes from the one before.
  void ring_gather(const AllGather& op, const std::vector<OpId>& after) {
    const RankGroup& g = op.group;
    const int n = g.count, me = g.index_of(rank_);
    const auto piece_of = [&](int member) {
      return op.into.piece(op.into.rows.owners.index_of(g[member]));
    };
    std::vector<OpId> have = after;
    for (int s = 0; s + 1 < n; ++s) {
      send(g[(me + 1) % n], piece_of((me + n - s) % n), have);
      have = known({recv(g[(me + n - 1) % n], piece_of((me + 2 * n - s - 1) % n), after)}, after);
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

  // The group's pieces are those of `into` from `base` on and begin at the own one: step k sends
  // the first 2^k of them 2^k members back.
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

  // Pieces lie by place, then node, from the own node on. First Bruck among equal places, so that
  // the many nodes cost few latencies; then a ring of whole places in the node, where links are
  // fast.
  void hierarchical_gather(const AllGather& op, const std::vector<OpId>& after) {
    const int g = node_size(op.group), nodes = op.group.count / g;
    const int me = op.group.index_of(rank_), node = me / g, place = me % g;
    const RankGroup across{.first = op.group.first + place, .stride = g, .count = nodes};
    bruck_gather(across, op.into, place * nodes, after);
    if (current_.empty()) current_ = after;
    const std::vector<OpId> first = current_;
    std::vector<OpId> have = first;
    for (int s = 0; s + 1 < g; ++s) {
      const int out = (place + g - s) % g, in = (place + 2 * g - s - 1) % g;
      const Rank next = op.group[node * g + (place + 1) % g];
      const Rank prev = op.group[node * g + (place + g - 1) % g];
      send(next, op.into.range(out * nodes, nodes), have);
      have = known({recv(prev, op.into.range(in * nodes, nodes), after)}, first);
    }
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
  void ring_reduce(const ReduceScatter& op, const std::vector<OpId>& after) {
    const int n = op.group.count, me = op.group.index_of(rank_);
    const int scratch = add_scratch(op.what, 1);
    std::vector<OpId> have = after;
    OpId merged = -1;
    for (int s = 0; s + 1 < n; ++s) {
      const int out = (me + 2 * n - s - 1) % n, in = (me + 2 * n - s - 2) % n;
      send(op.group[(me + 1) % n], op.what.piece(out), have);
      const SlotView incoming = alone(op.what, in, 1, scratch);
      const OpId done =
          recv_and_merge(op.group[(me + n - 1) % n], incoming, op.what.piece(in), merged, after);
      if (done >= 0) merged = done;
      have = known({done}, after);
    }
  }

  // The range that still concerns this member halves: the other half goes to the partner across it.
  void halving_reduce(const ReduceScatter& op, const std::vector<OpId>& after) {
    const int n = op.group.count, me = op.group.index_of(rank_);
    const int scratch = add_scratch(op.what, n / 2);
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

  const ShardedProblem& sharded_;
  RankProgram in_, out_;
  Rank rank_;
  CollectiveChoice choice_;
  std::vector<std::vector<OpId>> ends_;  // of each op of the input
  std::vector<OpId> current_;            // ends of the op that is being lowered
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
