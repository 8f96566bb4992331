// Compiles a schedule to compact programs: lowers its collectives and prices its ops.
#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "core/check.h"
#include "schedule/accounting.h"
#include "schedule/row_map.h"
#include "simulate/collective_times.h"
#include "simulate/compact_program.h"
#include "simulate/cost_model.h"

namespace longnet {
namespace {

Communicators communicators_of(const Schedule& schedule) {
  const RankGrid& grid = schedule.sharded.layout.grid();
  const int inner = schedule.inner_group;
  return {grid.count(), inner > 0 && inner < grid.sequence ? inner : 1, grid.replicas,
          grid.head_groups};
}

class Compiler {
 public:
  Compiler(const Schedule& schedule, const Twins& twins, const ClusterSpec& cluster,
           const CollectivePlan& plan)
      : sharded_(schedule.sharded),
        schedule_(schedule),
        twins_(twins),
        cluster_(cluster),
        plan_(plan),
        cost_(cluster, schedule.sharded),
        communicators_(communicators_of(schedule)) {}

  CompactProgram compile(Rank rank) {
    const RankProgram program =
        lower_collectives(sharded_, schedule_.program(rank), rank, plan_.lowering);
    LooseProgram loose;
    loose.ops.reserve(program.ops.size());
    rank_ = rank;
    under_way_.clear();
    adding_.clear();
    for (const Op& op : program.ops)
      if (const auto* attend = std::get_if<AttendBackward>(&op.what))
        ++adding_[attend->into_q.slot];
    loose.memory_by_tag = program.memory_by_tag();
    // A loop has issued the first operator of an iteration when the last one ends.
    double operators = -1;
    for (const Op& op : program.ops) {
      add(program, op, loose);
      operators += operators_of(program, op);
      loose.ops.back().issued_s = cluster_.host_s.value * std::max(0.0, operators);
    }
    return pack(loose, rank, twins_, cluster_.execution);
  }

 private:
  void add(const RankProgram& program, const Op& op, LooseProgram& out) {
    const auto bytes_of = [&](const SlotView& view) {
      return known_bytes(program.slots[size_t(view.slot)].kind, view);
    };
    const auto put = [&](OpKind kind, Rank peer, double amount) {
      out.add(kind, peer, amount, op.after);
    };
    const auto put_price = [&](OpKind kind, const Price& price) {
      out.guess = std::max(out.guess, price.guess);
      put(kind, -1, price.seconds);
    };
    // Rings and trees pass on rows of others: each rank sends an equal part of all bytes that must
    // arrive, however few are its own.
    const auto put_collective = [&](const RankGroup& group, int64_t all, std::string_view formula) {
      out.bytes_sent += all * (group.count - 1) / group.count;
      out.messages_sent += group.count - 1;
      put(OpKind::kCollective, int(out.collectives.size()), 0);
      out.collectives.push_back({group, seconds_of(group, double(all), formula)});
    };
    visit_op(
        op.what,
        [&](const Pack& o) {
          const int64_t bytes = std::min(bytes_of(o.from), bytes_of(o.into));
          put(OpKind::kPack, -1,
              continues_pack(program, op) ? cost_.pack_bytes_s(bytes) : cost_.pack_s(bytes));
        },
        [&](const Send& o) {
          const int64_t bytes = bytes_of(o.what);
          out.bytes_sent += bytes;
          ++out.messages_sent;
          const int tensors = tensors_of(program, o.what);
          under_way(o.to, bytes, tensors, true, out);
          put(OpKind::kSend, o.to, double(bytes));
          out.ops.back().tensors = tensors;
        },
        [&](const Recv& o) {
          const int64_t bytes = bytes_of(o.what);
          under_way(o.from, bytes, tensors_of(program, o.what), false, out);
          put(OpKind::kRecv, o.from, double(bytes));
        },
        [&](const AllGather& o) {
          put_collective(o.group, bytes_of(o.into), plan_.all_gather_formula);
        },
        [](const AllToAll&) { check(false, "an all_to_all is lowered before it is timed"); },
        [&](const ReduceScatter& o) {
          put_collective(o.group, bytes_of(o.what), plan_.reduce_scatter_formula);
        },
        [&](const Attend& o) { put(OpKind::kAttend, o.branch, attend_s(o, {}, op, out)); },
        [&](const Merge& o) {
          const int64_t bytes = bytes_of(o.from);
          if (holds_sum(program.slots[size_t(o.from.slot)].kind))
            return put(OpKind::kMerge, -1, cost_.sum_s(bytes, o.from.pieces_of_a_row()));
          // Striped partials lack a row: frameworks fold them into a slice and copy it back.
          const bool slice = sharded_.layout.kind() == LayoutKind::kStriped;
          put(OpKind::kMerge, -1, cost_.merge_s(bytes, slice));
        },
        [&](const Reset& o) { put(OpKind::kReset, -1, cost_.reset_s(bytes_of(o.into))); },
        [&](const Delta& o) {  // reads O and the same rows of dO, which lies as Q
          const int64_t grad_out = known_bytes(TensorKind::kGradOut, o.output);
          put(OpKind::kDelta, -1, cost_.delta_s(bytes_of(o.output) + grad_out));
        },
        [&](const AttendBackward& o) {
          const AttendPass pass{.backward = true, .adds = adding_[o.into_q.slot] > 1};
          put(OpKind::kAttendBackward, o.branch, attend_s(o.attend(), pass, op, out));
        },
        [&](const Gemm& o) {
          out.gemm_flops += gemm_flops(o);
          put_price(OpKind::kGemm, cost_.gemm(o, matrix_bytes(sharded_, program, o)));
        },
        [&](const Update& o) {
          put_price(OpKind::kUpdate, cost_.update(matrix_bytes(sharded_, program, o)));
        },
        [&](const CrossEntropy& o) {
          put_price(OpKind::kRowWise, cost_.cross_entropy(matrix_bytes(sharded_, program, o)));
        },
        [&](const RowWise& o) {
          const int64_t bytes = matrix_bytes(sharded_, program, o);
          put_price(OpKind::kRowWise, cost_.row_wise(o.function, bytes));
        });
  }

  double attend_s(const Attend& attend, const AttendPass& pass, const Op& op, LooseProgram& out) {
    const CostModel::AttendCost c = cost_.attend(attend, pass);
    out.pairs += (pass.backward ? 2.5 : 1) * c.pairs;
    out.guess = std::max(out.guess, c.guess);
    return beside_messages(c.seconds, op, out);
  }

  // ---- messages that hold a share of the device while they move (LinkSpec::device_share) ----

  void under_way(Rank peer, int64_t bytes, int tensors, bool is_send, const LooseProgram& out) {
    const LinkSpec& link = cluster_.intra;
    if (link.device_share.value == 0) return;
    if (peer / cluster_.node_size() != rank_ / cluster_.node_size()) return;
    const NcclChannels channels =
        nccl_channels(cluster_, communicators_, rank_, peer, double(bytes) / tensors);
    double rate = link.bandwidth_bytes_per_s.value;
    if (channels.bytes_per_s > 0) rate = std::min(rate, channels.bytes_per_s);
    under_way_.push_back({.op = int(out.ops.size()),
                          .seconds = double(bytes) / rate,
                          .share = channels.count * link.device_share.value,
                          .is_send = is_send});
  }
  // Seconds of an attend that takes `alone`, of which messages posted before it that it does not
  // wait for take their share as long as they move: it runs slower until then. Messages that go
  // and come at once hold the same share.
  double beside_messages(double alone, const Op& op, const LooseProgram& out) {
    if (under_way_.empty()) return alone;
    const int first = under_way_.front().op;
    std::vector<bool> awaited(out.ops.size() - size_t(first), false);
    const auto wait_for = [&](const std::vector<int>& ops) {
      for (const int before : ops)
        if (before >= first) awaited[size_t(before - first)] = true;
    };
    wait_for(op.after);
    for (size_t i = awaited.size(); i-- > 0;)
      if (awaited[i]) wait_for(out.ops[size_t(first) + i].after);
    std::array<double, 2> moving{}, held{};  // seconds, and those of the whole device
    for (const UnderWay& m : under_way_) {
      if (awaited[size_t(m.op - first)]) continue;
      moving[m.is_send] += m.seconds;
      held[m.is_send] += m.share * m.seconds;
    }
    under_way_.clear();
    const int way = held[1] > held[0];
    if (held[way] == 0) return alone;
    const double share = held[way] / moving[way];
    return alone + share * std::min(moving[way], alone / (1 - share));
  }

  // Ranks of a node pass on the same pieces of a branch, one after the other: counts them once.
  int64_t known_bytes(TensorKind kind, const SlotView& view) {
    if (view.rows.branch == kEveryRow || view.num_pieces() == 1)
      return view_bytes(sharded_, kind, view);
    const auto [known, is_new] =
        bytes_of_pieces_.try_emplace(std::tuple(kind, view.rows, view.pieces), 0);
    if (is_new) known->second = view_bytes(sharded_, kind, view);
    return known->second;
  }

  // Number of operators that a framework issues for `op`. Eager ones of a merge: to, transpose,
  // unsqueeze, three of the output, five of the LSE (ring-flash-attention, utils.py,
  // _update_out_and_lse). Those of an exchange of a tensor, with its packs: reshape, transpose,
  // contiguous, empty_like, all_to_all_single, reshape, transpose, contiguous, reshape
  // (long-context-attention, all_to_all.py). Delta is part of the attends' own call.
  double operators_of(const RankProgram& program, const Op& op) const {
    constexpr double kEagerMerge = 11, kEagerExchange = 9;
    const bool eager = cluster_.merge == MergeKind::kEager;
    const auto kind_of = [&](const SlotView& view) {
      return program.slots[size_t(view.slot)].kind;
    };
    const auto tensors = [&](const SlotView& view) { return double(tensors_of(program, view)); };
    if (const SlotView* message = message_of(op)) {
      if (is_piece_beside(program, op, -1)) return 0;
      if (!is_piece_beside(program, op, 1)) return tensors(*message);
      if (std::holds_alternative<Recv>(op.what)) return 0;
      return tensors(*message) * (eager ? kEagerExchange : 1);
    }
    if (const auto* merge = std::get_if<Merge>(&op.what)) {
      if (holds_sum(kind_of(merge->from))) return tensors(merge->from);
      if (cluster_.merge != MergeKind::kKernel) return eager ? kEagerMerge : 0;
    }
    if (std::holds_alternative<Delta>(op.what)) return 0;
    if (!std::holds_alternative<Pack>(op.what)) return 1;
    return eager || continues_pack(program, op) ? 0 : 1;
  }

  // K and V are two tensors, as are their gradients.
  static int tensors_of(const RankProgram& program, const SlotView& view) {
    return holds_keys(program.slots[size_t(view.slot)].kind) ? 2 : 1;
  }

  static const SlotView* message_of(const Op& op) {
    if (const auto* send = std::get_if<Send>(&op.what)) return &send->what;
    const auto* recv = std::get_if<Recv>(&op.what);
    return recv ? &recv->what : nullptr;
  }
  // True when another piece of the message's exchange goes the same way at most two ops away, where
  // sends and receives take turns: before it (-1) or behind it (1).
  static bool is_piece_beside(const RankProgram& program, const Op& op, int64_t side) {
    const int64_t at = &op - program.ops.data();
    for (const int64_t other : {at + side, at + 2 * side}) {
      if (other < 0 || other >= int64_t(program.ops.size())) continue;
      const Op& beside = program.ops[size_t(other)];
      if (beside.what.index() == op.what.index() &&
          message_of(beside)->slot == message_of(op)->slot)
        return true;
    }
    return false;
  }

  // Devices permute all pieces of an exchange in one kernel; threads loop over them.
  bool continues_pack(const RankProgram& program, const Op& op) const {
    if (cluster_.execution != ExecutionKind::kStreams || &op == &program.ops.front()) return false;
    const Pack* last = std::get_if<Pack>(&(&op - 1)->what);
    const Pack& now = std::get<Pack>(op.what);
    return last && last->from.slot == now.from.slot && last->into.slot == now.into.slot;
  }

  std::array<double, 3> seconds_of(const RankGroup& group, double bytes,
                                   std::string_view formula) const {
    const int size = cluster_.node_size();
    int64_t num_nodes = ceil_div(group.count, size);  // those of a group of all ranks
    if (group.count < sharded_.layout.world_size()) {
      std::set<int> nodes;
      for (int i = 0; i < group.count; ++i) nodes.insert(group[i] / size);
      num_nodes = int64_t(nodes.size());
    }
    return collective_seconds(cluster_, formula, {group.count, int(num_nodes), bytes});
  }

  const ShardedProblem& sharded_;
  const Schedule& schedule_;
  const Twins& twins_;
  const ClusterSpec& cluster_;
  const CollectivePlan& plan_;
  CostModel cost_;
  Communicators communicators_;
  struct UnderWay {
    int op;
    double seconds, share;
    bool is_send;
  };
  Rank rank_ = 0;                    // its program is compiled
  std::vector<UnderWay> under_way_;  // messages since its last attend
  std::map<int, int> adding_;        // its attends that add to a dQ, by slot
  std::map<std::tuple<TensorKind, Slice, PieceRange>, int64_t> bytes_of_pieces_;
};

// The twins of a schedule whose gathers and reduce_scatters double. A shift moves groups onto
// groups and partners onto partners, but for those of all ranks: p ^ 1, p ^ 2 and p ^ 4 lie on
// either side. Within a block of the period a partner is the same one for all twins, and so are
// smaller groups that lie in it; beyond it Twins::exclusive_or tells partners from neighbours, if
// the block is longer than any way of these that is a power of two. Where the number of all ranks
// is no power of two, a ring runs in their group.
Twins doubling_twins(const Schedule& schedule, const Twins& twins) {
  bool all_double = false, moves = true;
  int block = twins.period;
  for (Rank p = 0; p < twins.period && twins.period < twins.ranks; ++p) {
    const auto message_to = [&](Rank other) {
      const int around = Twins{twins.ranks}.offset_of(p, other);
      const int way = std::min(around, twins.ranks - around);
      if (std::has_single_bit(unsigned(way))) block = std::max(block, 2 * way);
    };
    const auto gather_of = [&](const RankGroup& g) {
      const bool all = g == RankGroup{.count = twins.ranks};
      all_double = all_double || all;
      for (int i = 0; i < g.count; ++i) moves = moves && (all || g[i] < twins.period);
    };
    for (const Op& op : schedule.program(p).ops)
      visit_op(
          op.what, [&](const AllGather& o) { gather_of(o.group); },
          [&](const ReduceScatter& o) { gather_of(o.group); },
          [&](const Send& o) { message_to(o.to); }, [&](const Recv& o) { message_to(o.from); },
          [&](const AllToAll& o) {
            for (int i = 0; i < o.group.count; ++i) message_to(o.group[i]);
          },
          [](const auto&) {});
  }
  if (!all_double || !std::has_single_bit(unsigned(twins.ranks))) return twins;
  moves = moves && block < twins.ranks;
  return {twins.ranks, moves ? block : twins.ranks, moves};
}

}  // namespace

CollectivePlan plan_collectives(const ClusterSpec& cluster, std::string_view name, int ranks) {
  CollectivePlan plan;
  const CollectiveNames& own = cluster.collectives;
  CollectiveChoice& c = plan.lowering;
  if (is_formula(name)) {
    plan.all_gather_formula = plan.reduce_scatter_formula = name;
  } else {
    c = parse_collective(name);
    if (c.all_gather == AllGatherAlgorithm::kNative) {
      if (is_formula(own.all_gather))
        plan.all_gather_formula = own.all_gather;
      else
        c.all_gather = parse_collective(own.all_gather).all_gather;
    }
    const bool chosen = name == to_string(AllGatherAlgorithm::kRing) ||
                        c.reduce_scatter != ReduceScatterAlgorithm::kRing;
    if (!chosen && is_formula(own.reduce_scatter))
      plan.reduce_scatter_formula = own.reduce_scatter;
    else if (!chosen)
      c.reduce_scatter = parse_collective(own.reduce_scatter).reduce_scatter;
  }
  if (!plan.reduce_scatter_formula.empty()) c.reduce_scatter = ReduceScatterAlgorithm::kNative;
  if (c.all_to_all == AllToAllAlgorithm::kNative)
    c.all_to_all = parse_collective(own.all_to_all).all_to_all;
  // Inside one node there are no nodes to respect: the choice of real runs.
  if (ranks > cluster.node_size()) c.node_size = cluster.node_size();
  return plan;
}

Twins lowered_twins(const Schedule& schedule, int period, const CollectivePlan& plan,
                    const ClusterSpec& cluster) {
  const CollectiveChoice& c = plan.lowering;
  const int ranks = schedule.sharded.layout.world_size();
  int64_t all = period;
  // A formula counts the nodes that a group lies in.
  if (plan.has_formula() && ranks > cluster.node_size())
    all = std::lcm(all, int64_t{cluster.node_size()});
  if (c.all_gather == AllGatherAlgorithm::kHierarchical)
    all = c.node_size > 0 ? std::lcm(all, int64_t{c.node_size}) : ranks;
  const Twins twins{ranks, all < ranks && ranks % all == 0 ? int(all) : ranks};
  if (c.all_gather == AllGatherAlgorithm::kRecursiveDoubling)
    return doubling_twins(schedule, twins);
  if (c.reduce_scatter == ReduceScatterAlgorithm::kRecursiveHalving) return {ranks, ranks};
  return twins;
}

ProgramSet compile(const Schedule& schedule, const Twins& twins, const ClusterSpec& cluster,
                   const CollectivePlan& plan, int64_t max_bytes) {
  const auto [ranks, period, exclusive_or] = twins;
  ProgramSet set{twins, communicators_of(schedule), {}};
  check(period >= 1 && ranks % period == 0, "a period of ", period, " on ", ranks, " ranks");
  Compiler compiler(schedule, twins, cluster, plan);
  for (int p = 0; p < period; ++p) {
    set.classes.push_back(compiler.compile(p));
    if (p != 0) continue;
    const double predicted = double(set.classes[0].storage_bytes()) * period;
    if (predicted > double(max_bytes))
      throw UsageError("no two ranks do the same here: ", period, " programs of ",
                       set.classes[0].num_ops(), " ops would take ", predicted / 1e9, " GB, ",
                       double(max_bytes) / 1e9, " GB are allowed");
  }
  return set;
}

}  // namespace longnet
