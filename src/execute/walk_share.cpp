// The share of a program that a walk runs where the whole would take too long.
#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "execute/virtual_walk.h"

namespace longnet {
namespace {

// Returns `wanted` indices below `all`, spread evenly.
std::vector<size_t> evenly(size_t wanted, size_t all) {
  std::vector<size_t> chosen;
  for (size_t i = 0; i < wanted; ++i) chosen.push_back((2 * i + 1) * all / (2 * wanted));
  return chosen;
}

double pairs_of(const AttendTask& task, bool causal) {
  int64_t pairs = 0;
  const TokenRange q{task.q.first_token, task.q.token_step, task.q.rows};
  for (const KvRun& kv : task.kv)
    pairs += count_pairs(q, {kv.first_token, kv.token_step, kv.rows}, causal);
  return double(pairs);
}

double pairs_of(const std::vector<AttendGrid>& grids, bool causal) {
  double pairs = 0;
  for (const AttendGrid& grid : grids) pairs += double(grid.size()) * pairs_of(grid.task, causal);
  return pairs;
}

// Tasks in pieces of at most kRowsPerPiece queries.
class Pieces {
 public:
  Pieces(const std::vector<AttendGrid>& grids, int64_t element_bytes)
      : grids_(grids), element_bytes_(element_bytes) {
    for (const AttendGrid& grid : grids)
      end_.push_back(int64_t(size()) + grid.size() * ceil_div(grid.task.q.rows, kRowsPerPiece));
  }
  size_t size() const { return end_.empty() ? 0 : size_t(end_.back()); }
  AttendGrid operator[](size_t i) const {
    const auto found = std::ranges::upper_bound(end_, int64_t(i));
    const AttendGrid& grid = grids_[size_t(found - end_.begin())];
    const int64_t rows = grid.task.q.rows, pieces = ceil_div(rows, kRowsPerPiece);
    const int64_t at = int64_t(i) - (found == end_.begin() ? 0 : *(found - 1));
    const int64_t first = at % pieces * kRowsPerPiece;
    return {.task = rows_of(grid.at(at / pieces), first, std::min(kRowsPerPiece, rows - first),
                            element_bytes_)};
  }

 private:
  static constexpr int64_t kRowsPerPiece = 2048;
  const std::vector<AttendGrid>& grids_;
  int64_t element_bytes_;
  std::vector<int64_t> end_;  // one past the last piece of each grid
};

}  // namespace

double WalkShare::forward_s(double attend_s, double merge_s, double pack_s) const {
  const double attends = pairs > 0 ? all_pairs / pairs : 1;
  const double folds = merges > 0 ? double(all_merges) / double(merges) : 1;
  return attend_s * attends + merge_s * folds + pack_s;
}

ShareChoice choose_share(const BoundProgram& bound, double share, int at_once) {
  check(share > 0 && share <= 1, "a share of ", share);
  const auto& ops = bound.program().ops;
  const bool causal = bound.options().causal;
  ShareChoice out{.runs = std::vector<bool>(ops.size(), false),
                  .attends = std::vector<std::vector<AttendGrid>>(ops.size()),
                  .share = {}};
  std::vector<size_t> attends;
  for (size_t i = 0; i < ops.size(); ++i) {
    if (std::holds_alternative<Merge>(ops[i].what)) ++out.share.all_merges;
    if (!std::holds_alternative<Attend>(ops[i].what) || bound.op(i).attends.empty()) continue;
    attends.push_back(i);
    out.share.all_pairs += pairs_of(bound.op(i).attends, causal);
  }
  if (attends.empty()) return out;
  const double wanted = share * double(attends.size());
  const auto chosen = evenly(size_t(std::ceil(wanted)), attends.size());
  const double of_tasks = wanted / double(chosen.size());
  // Messages that no attend has read so far, by slot. Messages of other rows replace them.
  struct Message {
    size_t op;
    Slice rows;
  };
  std::map<int, std::vector<Message>> pending;
  size_t turn = 0;     // index among the chosen attends
  bool fresh = false;  // the last attend runs, and so does its merge
  for (size_t i = 0; i < ops.size(); ++i) {
    const Action& what = ops[i].what;
    if (is_communication(what))
      for_each_view(what, [&](const SlotView& view, bool writes) {
        if (!writes) return;
        auto& messages = pending[view.slot];
        if (!messages.empty() && messages.front().rows != view.rows) messages.clear();
        messages.push_back({i, view.rows});
      });
    if (const auto* attend = std::get_if<Attend>(&what)) {
      fresh = turn < chosen.size() && attends[chosen[turn]] == i;
      if (!fresh) continue;
      ++turn;
      for (const int slot : {attend->q.slot, attend->kv.slot}) {
        for (const Message& m : pending[slot]) out.runs[m.op] = true;
        pending[slot].clear();
      }
      // Runs whole rounds of tasks: they keep the device busy to the end, as all tasks together do.
      const Pieces tasks(bound.op(i).attends, dtype_bytes(bound.options().dtype));
      const auto round = size_t(at_once);
      const size_t rounds = std::max<size_t>(
          1, size_t(std::llround(of_tasks * double(tasks.size()) / double(round))));
      for (const size_t t : evenly(std::min(rounds * round, tasks.size()), tasks.size()))
        out.attends[i].push_back(tasks[t]);
      out.share.pairs += pairs_of(out.attends[i], causal);
      out.runs[i] = true;
    } else if (!is_communication(what)) {
      const bool merge = std::holds_alternative<Merge>(what);
      out.runs[i] = !merge || fresh;
      out.share.merges += merge && fresh;
    }
  }
  return out;
}

}  // namespace longnet
