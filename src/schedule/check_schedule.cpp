#include "schedule/check_schedule.h"

#include <algorithm>
#include <deque>
#include <map>

#include "core/check.h"
#include "schedule/row_map.h"
#include "schedule/symbolic_rank.h"

namespace longnet {
namespace {

class Faults {
 public:
  explicit Faults(int limit) : limit_(limit) {}
  template <class... Parts>
  void add(Rank rank, OpId op, const Parts&... parts) {
    if (int(lines_.size()) < limit_)
      lines_.push_back(concat("rank ", rank, ", op ", op, ": ", parts...));
  }
  SymbolicRank::Report at(Rank rank, OpId op) {
    return [this, rank, op](const std::string& what) { add(rank, op, what); };
  }
  std::vector<std::string> take() { return std::move(lines_); }
  bool any() const { return !lines_.empty(); }

 private:
  int limit_;
  std::vector<std::string> lines_;
};

// One access of an op to a slot.
struct Touch {
  SlotView view;
  bool writes;
  Region region;  // rows touched in slots with fixed rows; elsewhere everything
};

std::vector<Touch> touches(const RankProgram& p, const Op& op, const ShardedProblem& s) {
  const Region all{s.all_tokens(), s.all_heads()};
  const int64_t group = s.problem.num_heads / s.problem.num_kv_heads;
  Region written = visit_op(
      op.what,
      [&](const Pack& o) {
        return Region{all.tokens, intersect(heads_of(o.from, 0), heads_of(o.into, 0))};
      },
      [&](const Attend& o) {
        return o.into.rows.branch == kEveryRow ? Region{o.queries, o.heads} : all;
      },
      [](const Merge& o) {
        return Region{o.from.rows.within, o.from.rows.heads};
      },
      [&](const AttendBackward& o) {
        return o.into_q.rows.branch == kEveryRow ? Region{o.queries, o.heads} : all;
      },
      [&](const auto&) { return all; });
  std::vector<Touch> out;
  for_each_view(op.what, [&](const SlotView& view, bool writes) {
    out.push_back({view, writes, writes ? written : all});
    Region& region = out.back().region;
    const bool exists = view.slot >= 0 && view.slot < int(p.slots.size());
    if (!writes || !exists || !holds_keys(p.slots[size_t(view.slot)].kind)) return;
    // Query heads of a group share their K/V head's rows; queries write to keys anywhere.
    if (std::holds_alternative<AttendBackward>(op.what)) region.tokens = all.tokens;
    const int64_t first = region.heads.first / group * group;
    region.heads = {first, ceil_div(region.heads.end(), group) * group - first};
  });
  return out;
}

// ---- structure: dependencies point back, slots exist and are large enough, kinds fit ----

void check_view(const Schedule& s, const RankProgram& p, Rank rank, OpId id, const SlotView& view,
                Faults& faults) {
  if (view.slot < 0 || view.slot >= int(p.slots.size()))
    return faults.add(rank, id, "slot ", view.slot, " does not exist");
  if (view.first_piece() < 0 || view.first_piece() + view.num_pieces() > view.rows.num_pieces())
    return faults.add(rank, id, "slot ", view.slot, " has no such pieces");
  const Slot& slot = p.slots[size_t(view.slot)];
  const int64_t bytes = view_bytes(s.sharded, slot.kind, {.rows = view.rows});
  if (bytes > slot.bytes)
    faults.add(rank, id, "needs ", bytes, " bytes in slot ", view.slot, ", which has ", slot.bytes);
}

void check_kinds(const RankProgram& p, Rank rank, OpId id, Faults& faults) {
  using enum TensorKind;
  const auto kind = [&](const SlotView& view) { return p.slots[size_t(view.slot)].kind; };
  const auto sums = [&](const SlotView& view) {
    return kind(view) == kPartial || holds_sum(kind(view));
  };
  const bool fit = visit_op(
      p.ops[size_t(id)].what,
      [&](const Pack& o) {
        if (kind(o.from) == kStatistics) return false;  // executors pack rows of head_dim
        return holds_o(kind(o.from)) ? holds_o(kind(o.into)) : kind(o.from) == kind(o.into);
      },
      [&](const AllToAll& o) { return kind(o.from) == kind(o.into); },
      [&](const ReduceScatter& o) { return sums(o.what); },
      [&](const Attend& o) {
        return kind(o.q) == kQuery && kind(o.kv) == kKeyValue && kind(o.into) == kPartial;
      },
      [&](const Merge& o) { return sums(o.from) && kind(o.from) == kind(o.into); },
      [&](const Reset& o) { return sums(o.into); },
      [&](const Delta& o) {
        return kind(o.output) == kPartial && kind(o.lse) == kPartial &&
               kind(o.grad_out) == kGradOut && kind(o.into) == kStatistics;
      },
      [&](const AttendBackward& o) {
        return kind(o.q) == kQuery && kind(o.kv) == kKeyValue && kind(o.grad_out) == kGradOut &&
               kind(o.statistics) == kStatistics && kind(o.into_q) == kGradQuery &&
               kind(o.into_kv) == kGradKeyValue;
      },
      [](const auto&) { return true; });
  if (!fit)
    faults.add(rank, id, "a slot holds another kind of tensor. ", to_text(p, p.ops[size_t(id)]));
}

void check_structure(const Schedule& s, const RankProgram& p, Rank rank, Faults& faults) {
  for (size_t i = 0; i < p.ops.size(); ++i) {
    for (OpId a : p.ops[i].after)
      if (a < 0 || a >= OpId(i))
        faults.add(rank, OpId(i), "depends on op ", a, ", which does not come before it");
    for (const Touch& t : touches(p, p.ops[i], s.sharded))
      check_view(s, p, rank, OpId(i), t.view, faults);
    if (!faults.any()) check_kinds(p, rank, OpId(i), faults);
  }
}

// ---- races: ops that touch the same rows of a slot are ordered ----

// before[j] holds the ops that have surely finished when op j starts.
std::vector<std::vector<bool>> finished_before(const RankProgram& p) {
  std::vector<std::vector<bool>> before(p.ops.size());
  for (size_t j = 0; j < p.ops.size(); ++j) {
    before[j].assign(j, false);
    for (OpId a : p.ops[j].after) {
      before[j][size_t(a)] = true;
      for (size_t i = 0; i < size_t(a); ++i)
        if (before[size_t(a)][i]) before[j][i] = true;
    }
  }
  return before;
}

bool overlap(const Touch& a, const Touch& b) {
  if (a.view.rows != b.view.rows) return true;  // the slot is laid out anew: everything moves
  const int first = std::max(a.view.first_piece(), b.view.first_piece());
  const int end = std::min(a.view.first_piece() + a.view.num_pieces(),
                           b.view.first_piece() + b.view.num_pieces());
  return first < end && intersect(a.region.heads, b.region.heads).count > 0 &&
         !intersect(a.region.tokens, b.region.tokens).empty();
}

void check_races(const Schedule& s, const RankProgram& p, Rank rank, Faults& faults) {
  const auto before = finished_before(p);
  std::map<int, std::vector<std::pair<OpId, Touch>>> by_slot;
  for (size_t j = 0; j < p.ops.size(); ++j)
    for (const Touch& now : touches(p, p.ops[j], s.sharded)) {
      for (const auto& [i, earlier] : by_slot[now.view.slot]) {
        if (size_t(i) == j || !(now.writes || earlier.writes)) continue;
        if (before[j][size_t(i)] || !overlap(now, earlier)) continue;
        faults.add(rank, OpId(j), "races with op ", i, " for slot ", now.view.slot,
                   ": add a dependency. ", to_text(p, p.ops[j]));
      }
      by_slot[now.view.slot].push_back({OpId(j), now});
    }
}

// ---- progress, matching and contents: in the order of the executors ----

class SymbolicRun {
 public:
  SymbolicRun(const Schedule& schedule, const std::vector<RankProgram>& programs, Faults& faults)
      : sharded_(schedule.sharded),
        programs_(programs),
        faults_(faults),
        pc_(programs.size(), 0),
        done_(programs.size()) {
    for (size_t r = 0; r < programs.size(); ++r) {
      done_[r].assign(programs[r].ops.size(), false);
      memory_.emplace_back(sharded_, programs[r], Rank(r));
    }
  }

  void run() {
    for (bool progress = true; progress;) {
      progress = false;
      for (size_t r = 0; r < programs_.size(); ++r)
        while (pc_[r] < programs_[r].ops.size() && ready(r)) {
          start(Rank(r), OpId(pc_[r]++));
          progress = true;
        }
    }
    bool finished = true;
    for (size_t r = 0; r < programs_.size(); ++r)
      for (size_t i = 0; i < done_[r].size() && finished; ++i)
        if (!done_[r][i]) {
          faults_.add(Rank(r), OpId(i), "deadlock: waits for ever. ",
                      to_text(programs_[r], programs_[r].ops[i]));
          finished = false;
        }
    if (!finished) return;
    for (size_t r = 0; r < programs_.size(); ++r)
      memory_[r].check_output(faults_.at(Rank(r), OpId(programs_[r].ops.size())));
  }

 private:
  struct Posted {
    Rank rank;
    OpId op;
    SlotView view;
    std::vector<PieceState> sent = {};
  };
  using Channel = std::pair<Rank, Rank>;  // (from, to)
  using Round = std::vector<Posted>;      // one collective, as its members arrive

  bool ready(size_t r) const {
    for (OpId a : programs_[r].ops[pc_[r]].after)
      if (!done_[r][size_t(a)]) return false;
    return true;
  }

  void start(Rank r, OpId id) {
    const auto report = faults_.at(r, id);
    visit_op(
        programs_[size_t(r)].ops[size_t(id)].what,
        [&](const Send& o) {
          match({r, o.to}, {r, id, o.what, memory_[size_t(r)].read(o.what, report)}, sends_,
                recvs_);
        },
        [&](const Recv& o) {
          match({o.from, r}, {r, id, o.what}, recvs_, sends_);
        },
        [&](const AllGather& o) { join(r, id, o.group, o.into); },
        [&](const AllToAll& o) { join(r, id, o.group, o.from); },
        [&](const ReduceScatter& o) { join(r, id, o.group, o.what); },
        [&](const auto& o) {
          memory_[size_t(r)].apply(o, report);
          done_[size_t(r)][size_t(id)] = true;
        });
  }

  void deliver(const std::vector<PieceState>& what, const SlotView& sent, Rank to, OpId op,
               const SlotView& into, Rank from) {
    if (!same_rows(sent, into))
      faults_.add(to, op, "expects ", to_text(into.rows), ", rank ", from, " has ",
                  to_text(sent.rows));
    else
      memory_[size_t(to)].write(into, what, faults_.at(to, op));
  }

  // A send completes when its receive is posted (rendezvous), which is the strictest a transport
  // may be.
  void match(Channel channel, Posted mine, std::map<Channel, std::deque<Posted>>& own_side,
             std::map<Channel, std::deque<Posted>>& other_side) {
    if (channel.first == channel.second ||
        std::max(channel.first, channel.second) >= Rank(programs_.size()))
      return faults_.add(mine.rank, mine.op, "talks to a rank that does not exist or to itself");
    auto& waiting = other_side[channel];
    if (waiting.empty()) return own_side[channel].push_back(std::move(mine));
    const Posted partner = std::move(waiting.front());
    waiting.pop_front();
    const bool sending = mine.rank == channel.first;
    const Posted &sender = sending ? mine : partner, &receiver = sending ? partner : mine;
    deliver(sender.sent, sender.view, receiver.rank, receiver.op, receiver.view, sender.rank);
    done_[size_t(mine.rank)][size_t(mine.op)] = done_[size_t(partner.rank)][size_t(partner.op)] =
        true;
  }

  // The k-th collective of a group on one member belongs to the k-th on each other.
  void join(Rank r, OpId id, const RankGroup& group, const SlotView& read) {
    if (group.index_of(r) < 0)
      return faults_.add(r, id, "takes part in a collective of ranks it is not among");
    auto& rounds = rounds_[group];
    auto round = std::ranges::find_if(
        rounds, [&](const Round& x) { return std::ranges::count(x, r, &Posted::rank) == 0; });
    if (round == rounds.end()) round = rounds.insert(rounds.end(), Round{});
    // An all-gather gives only its own piece; the others are still on their way.
    const bool gather =
        std::holds_alternative<AllGather>(programs_[size_t(r)].ops[size_t(id)].what);
    const SlotView own = gather ? read.piece(std::max(0, read.rows.owners.index_of(r))) : read;
    round->push_back({r, id, read, memory_[size_t(r)].read(own, faults_.at(r, id))});
    if (int(round->size()) < group.count) return;
    for (const Posted& to : *round) complete(*round, group, to);
    for (const Posted& p : *round) done_[size_t(p.rank)][size_t(p.op)] = true;
    rounds.erase(round);
  }

  void complete(const Round& round, const RankGroup& group, const Posted& to) {
    const int me = group.index_of(to.rank);
    visit_op(
        programs_[size_t(to.rank)].ops[size_t(to.op)].what,
        [&](const AllGather& o) {
          for (const Posted& from : round) {
            if (from.rank == to.rank) continue;
            const int piece = o.into.rows.owners.index_of(from.rank);
            if (piece < 0)
              return faults_.add(to.rank, to.op, "gathers ", to_text(o.into.rows), " without rank ",
                                 from.rank);
            const SlotView sent =
                from.view.piece(std::max(0, from.view.rows.owners.index_of(from.rank)));
            deliver(from.sent, sent, to.rank, to.op, o.into.piece(piece), from.rank);
          }
        },
        [&](const AllToAll& o) {
          for (const Posted& from : round)
            deliver({from.sent.at(size_t(me))}, from.view.piece(me), to.rank, to.op,
                    o.into.piece(group.index_of(from.rank)), from.rank);
        },
        [&](const ReduceScatter& o) {
          PieceState sum = to.sent.at(size_t(me));
          for (const Posted& from : round)
            if (from.rank != to.rank) sum.add(from.sent.at(size_t(me)).sum);
          memory_[size_t(to.rank)].write(o.what.piece(me), {sum}, faults_.at(to.rank, to.op));
        },
        [](const auto&) {});
  }

  const ShardedProblem& sharded_;
  const std::vector<RankProgram>& programs_;
  Faults& faults_;
  std::vector<size_t> pc_;
  std::vector<std::vector<bool>> done_;
  std::vector<SymbolicRank> memory_;
  std::map<Channel, std::deque<Posted>> sends_, recvs_;
  std::map<RankGroup, std::vector<Round>> rounds_;
};

}  // namespace

std::vector<std::string> check_schedule(const Schedule& schedule, int limit) {
  Faults faults(limit);
  std::vector<RankProgram> programs;
  for (Rank r = 0; r < schedule.sharded.layout.world_size(); ++r)
    programs.push_back(schedule.program(r));
  for (size_t r = 0; r < programs.size(); ++r)
    check_structure(schedule, programs[r], Rank(r), faults);
  if (faults.any()) return faults.take();  // the rest relies on it
  for (size_t r = 0; r < programs.size(); ++r) check_races(schedule, programs[r], Rank(r), faults);
  SymbolicRun(schedule, programs, faults).run();
  return faults.take();
}

void require_correct(const Schedule& schedule) {
  const std::vector<std::string> faults = check_schedule(schedule);
  if (faults.empty()) return;
  std::string all;
  for (const std::string& line : faults) all += "\n  " + line;
  throw Error(concat("the schedule '", schedule.algorithm, "' is wrong:", all));
}

}  // namespace longnet
