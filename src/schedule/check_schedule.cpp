#include "schedule/check_schedule.h"

#include <deque>
#include <map>
#include <optional>

#include "core/check.h"
#include "schedule/check_coverage.h"
#include "schedule/program_text.h"
#include "schedule/row_map.h"

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
  std::vector<std::string> take() { return std::move(lines_); }
  bool any() const { return !lines_.empty(); }

 private:
  int limit_;
  std::vector<std::string> lines_;
};

// ---- structure: dependencies point back, slots exist and are large enough, kinds fit ----

void check_held(const Schedule& s, const RankProgram& p, Rank rank, OpId id, const Held& held,
                TensorKind kind, Faults& faults) {
  if (held.slot < 0 || held.slot >= int(p.slots.size()))
    return faults.add(rank, id, "slot ", held.slot, " does not exist");
  const Slot& slot = p.slots[size_t(held.slot)];
  if (slot.kind != kind)
    return faults.add(rank, id, "slot ", held.slot, " holds another kind of tensor");
  const int64_t bytes = slice_bytes(s.sharded, kind, held.rows);
  if (bytes > slot.bytes)
    faults.add(rank, id, "needs ", bytes, " bytes in slot ", held.slot, ", which has ", slot.bytes);
}

void check_structure(const Schedule& s, const RankProgram& p, Rank rank, Faults& faults) {
  for (size_t i = 0; i < p.ops.size(); ++i) {
    const OpId id = OpId(i);
    for (OpId a : p.ops[i].after)
      if (a < 0 || a >= id)
        faults.add(rank, id, "depends on op ", a, ", which does not come before it");
    const auto held = [&](const Held& h, TensorKind kind) {
      check_held(s, p, rank, id, h, kind, faults);
    };
    constexpr auto kKv = TensorKind::kKeyValue, kPart = TensorKind::kPartial;
    std::visit(Overload{
                   [&](const Select& o) { held(o.from, kKv), held(o.into, kKv); },
                   [&](const Send& o) { held(o.what, kKv); },
                   [&](const Recv& o) { held(o.what, kKv); },
                   [&](const AllGather& o) { held(o.own, kKv), held(o.into, kKv); },
                   [&](const Attend& o) {
                     held(o.q, TensorKind::kQuery), held(o.kv, kKv), held(o.into, kPart);
                   },
                   [&](const Merge& o) { held(o.from, kPart), held(o.into, kPart); },
                   [&](const Reset& o) { held(o.into, kPart); },
               },
               p.ops[i].what);
  }
}

// ---- races: ops that touch the same rows of a slot are ordered ----

struct Access {
  int slot;
  bool writes;
  TokenInterval rows;  // of a slot with fixed rows (the shards and the output); else everything
};

std::vector<Access> accesses(const Op& op, const TokenInterval& all) {
  const auto region = [&](const Held& h, TokenInterval rows) {
    return h.slot == kOutputSlot ? rows : all;
  };
  return std::visit(
      Overload{
          [&](const Select& o) {
            return std::vector<Access>{{o.from.slot, false, all}, {o.into.slot, true, all}};
          },
          [&](const Send& o) {
            return std::vector<Access>{{o.what.slot, false, all}};
          },
          [&](const Recv& o) {
            return std::vector<Access>{{o.what.slot, true, all}};
          },
          [&](const AllGather& o) {
            return std::vector<Access>{{o.own.slot, false, all}, {o.into.slot, true, all}};
          },
          [&](const Attend& o) {
            return std::vector<Access>{{o.q.slot, false, all},
                                       {o.kv.slot, false, all},
                                       {o.into.slot, true, region(o.into, o.queries)}};
          },
          [&](const Merge& o) {
            return std::vector<Access>{{o.from.slot, false, all},
                                       {o.into.slot, true, region(o.into, o.from.rows.within)}};
          },
          [&](const Reset& o) {
            return std::vector<Access>{{o.into.slot, true, all}};
          },
      },
      op.what);
}

// before[j] holds the ops that have surely finished when op j starts.
std::vector<std::vector<bool>> finished_before(const RankProgram& p) {
  std::vector<std::vector<bool>> before(p.ops.size());
  for (size_t j = 0; j < p.ops.size(); ++j) {
    before[j].assign(j, false);
    for (OpId a : p.ops[j].after) {
      if (a < 0 || size_t(a) >= j) continue;
      before[j][size_t(a)] = true;
      for (size_t i = 0; i < size_t(a); ++i)
        if (before[size_t(a)][i]) before[j][i] = true;
    }
  }
  return before;
}

void check_races(const Schedule& s, const RankProgram& p, Rank rank, Faults& faults) {
  const auto before = finished_before(p);
  std::map<int, std::vector<std::pair<OpId, Access>>> by_slot;
  for (size_t j = 0; j < p.ops.size(); ++j)
    for (const Access& now : accesses(p.ops[j], s.sharded.all_tokens())) {
      for (const auto& [i, earlier] : by_slot[now.slot]) {
        if (size_t(i) == j || !(now.writes || earlier.writes)) continue;
        if (intersect(now.rows, earlier.rows).empty() || before[j][size_t(i)]) continue;
        faults.add(rank, OpId(j), "races with op ", i, " for slot ", now.slot,
                   ": add a dependency. ", to_text(p.ops[j]));
      }
      by_slot[now.slot].push_back({OpId(j), now});
    }
}

// ---- contents: in program order (the race check makes it the only order that matters) ----

class Contents {
 public:
  Contents(const Schedule& s, const RankProgram& p, Rank rank, Faults& faults)
      : program_(p), rank_(rank), faults_(faults), held_(std::max(p.slots.size(), size_t{3})) {
    const Slice own{kEveryRow, {rank, 1, 1}, s.sharded.all_tokens(), s.sharded.all_heads()};
    held_[kQuerySlot] = held_[kKvSlot] = held_[kOutputSlot] = own;
  }

  void check_all() {
    for (size_t i = 0; i < program_.ops.size(); ++i) {
      op_ = OpId(i);
      std::visit(
          Overload{
              [&](const Select& o) { reads(o.from), selects(o), writes(o.into); },
              [&](const Send& o) { reads(o.what); },
              [&](const Recv& o) { writes(o.what); },
              [&](const AllGather& o) { reads(o.own), gathers(o), writes(o.into); },
              [&](const Attend& o) { reads(o.q), reads(o.kv), attends(o), writes_partial(o.into); },
              [&](const Merge& o) { reads(o.from), reads(o.into); },
              [&](const Reset& o) { reads(o.into); },
          },
          program_.ops[i].what);
    }
  }

 private:
  void reads(const Held& h) {
    const auto& now = held_[size_t(h.slot)];
    if (!now)
      faults_.add(rank_, op_, "reads slot ", h.slot, " before anything is in it");
    else if (*now != h.rows)
      faults_.add(rank_, op_, "slot ", h.slot, " holds ", to_text(*now), ", not ", to_text(h.rows));
  }
  void writes(const Held& h) {
    if (h.slot <= kOutputSlot) faults_.add(rank_, op_, "overwrites an input or the output");
    held_[size_t(h.slot)] = h.rows;
  }
  void writes_partial(const Held& h) {
    if (h.slot == kOutputSlot) return reads(h);
    held_[size_t(h.slot)] = h.rows;
  }
  void selects(const Select& o) {
    Slice expected = o.from.rows;
    expected.branch = o.into.rows.branch;
    expected.within = o.into.rows.within;
    if (o.from.rows.branch != kEveryRow || expected != o.into.rows ||
        !o.from.rows.within.contains(o.into.rows.within))
      faults_.add(rank_, op_, "cannot select ", to_text(o.into.rows), " from ",
                  to_text(o.from.rows));
  }
  void gathers(const AllGather& o) {
    Slice expected = o.own.rows;
    expected.owners = o.group;
    if (o.group.index_of(rank_) < 0)
      faults_.add(rank_, op_, "gathers in a group that it is not in");
    if (o.own.rows.owners != RankGroup{rank_, 1, 1} || expected != o.into.rows)
      faults_.add(rank_, op_, "gathers ", to_text(o.into.rows), " but the group has ",
                  to_text(expected));
  }
  void attends(const Attend& o) {
    const auto holds_branch = [&](const Held& h) {
      return h.rows.branch == kEveryRow || h.rows.branch == o.branch;
    };
    if (!holds_branch(o.q) || !holds_branch(o.kv) || !holds_branch(o.into) ||
        o.q.rows.heads != o.into.rows.heads)
      faults_.add(rank_, op_, "mixes rows of different branches or heads");
    if (o.into.rows.branch != kEveryRow && o.into.rows.within != o.queries)
      faults_.add(rank_, op_, "writes other rows than its partial holds");
  }

  const RankProgram& program_;
  Rank rank_;
  Faults& faults_;
  OpId op_ = 0;
  std::vector<std::optional<Slice>> held_;
};

// ---- progress and matching: as the executors walk ----

class Walk {
 public:
  Walk(const std::vector<RankProgram>& programs, Faults& faults)
      : programs_(programs), faults_(faults), pc_(programs.size(), 0), done_(programs.size()) {
    for (size_t r = 0; r < programs.size(); ++r) done_[r].assign(programs[r].ops.size(), false);
  }

  void run() {
    for (bool progress = true; progress;) {
      progress = false;
      for (size_t r = 0; r < programs_.size(); ++r)
        while (pc_[r] < programs_[r].ops.size() && ready(r)) {
          post(Rank(r), OpId(pc_[r]++));
          progress = true;
        }
    }
    for (size_t r = 0; r < programs_.size(); ++r)
      if (pc_[r] < programs_[r].ops.size())
        faults_.add(Rank(r), OpId(pc_[r]), "deadlock: waits for ever. ",
                    to_text(programs_[r].ops[pc_[r]]));
      else
        for (size_t i = 0; i < done_[r].size(); ++i)
          if (!done_[r][i])
            faults_.add(Rank(r), OpId(i), "deadlock: never completes. ",
                        to_text(programs_[r].ops[i]));
  }

 private:
  struct Posted {
    Rank rank;
    OpId op;
    Slice rows;
  };
  using Channel = std::pair<Rank, Rank>;  // (from, to)

  bool ready(size_t r) const {
    for (OpId a : programs_[r].ops[pc_[r]].after)
      if (!done_[r][size_t(a)]) return false;
    return true;
  }

  void post(Rank r, OpId id) {
    std::visit(Overload{
                   [&](const Send& o) {
                     match({r, o.to}, {r, id, o.what.rows}, sends_, recvs_);
                   },
                   [&](const Recv& o) {
                     match({o.from, r}, {r, id, o.what.rows}, recvs_, sends_);
                   },
                   [&](const AllGather& o) { gather(r, id, o); },
                   [&](const auto&) { done_[size_t(r)][size_t(id)] = true; },
               },
               programs_[size_t(r)].ops[size_t(id)].what);
  }

  // A send completes when its receive is posted (rendezvous), which is the strictest a transport
  // may be.
  void match(Channel channel, Posted mine, std::map<Channel, std::deque<Posted>>& own_side,
             std::map<Channel, std::deque<Posted>>& other_side) {
    if (channel.first == channel.second ||
        std::max(channel.first, channel.second) >= Rank(programs_.size()))
      return faults_.add(mine.rank, mine.op, "talks to a rank that does not exist or to itself");
    auto& waiting = other_side[channel];
    if (waiting.empty()) return own_side[channel].push_back(mine);
    const Posted partner = waiting.front();
    waiting.pop_front();
    if (partner.rows != mine.rows)
      faults_.add(mine.rank, mine.op, "expects ", to_text(mine.rows), ", rank ", partner.rank,
                  " has ", to_text(partner.rows));
    done_[size_t(mine.rank)][size_t(mine.op)] = done_[size_t(partner.rank)][size_t(partner.op)] =
        true;
  }

  // The k-th gather of a group on one member belongs to the k-th on each other.
  void gather(Rank r, OpId id, const AllGather& o) {
    auto& rounds = gathers_[{o.group.first, o.group.stride, o.group.count}];
    for (auto& round : rounds) {
      if (std::any_of(round.begin(), round.end(), [&](const Posted& p) { return p.rank == r; }))
        continue;
      if (round.front().rows != o.into.rows)
        faults_.add(r, id, "gathers ", to_text(o.into.rows), ", rank ", round.front().rank,
                    " gathers ", to_text(round.front().rows));
      round.push_back({r, id, o.into.rows});
      return complete(round, o.group);
    }
    rounds.push_back({{r, id, o.into.rows}});
    complete(rounds.back(), o.group);
  }
  void complete(const std::vector<Posted>& round, const RankGroup& group) {
    if (int(round.size()) < group.count) return;
    for (const Posted& p : round) done_[size_t(p.rank)][size_t(p.op)] = true;
  }

  const std::vector<RankProgram>& programs_;
  Faults& faults_;
  std::vector<size_t> pc_;
  std::vector<std::vector<bool>> done_;
  std::map<Channel, std::deque<Posted>> sends_, recvs_;
  std::map<std::tuple<int, int, int>, std::vector<std::vector<Posted>>> gathers_;
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
  for (size_t r = 0; r < programs.size(); ++r) {
    check_races(schedule, programs[r], Rank(r), faults);
    Contents(schedule, programs[r], Rank(r), faults).check_all();
    for (const std::string& line : check_coverage(schedule.sharded, programs[r], Rank(r)))
      faults.add(Rank(r), OpId(programs[r].ops.size()), line);
  }
  Walk(programs, faults).run();
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
