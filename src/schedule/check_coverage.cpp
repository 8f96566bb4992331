#include "schedule/check_coverage.h"

#include <algorithm>
#include <map>
#include <set>

#include "core/check.h"
#include "schedule/program_text.h"
#include "schedule/row_map.h"

namespace longnet {
namespace {

// "The rows of `branch` in `queries` have attended to the keys of `kv`", weighted into a partial
// result.
struct Contribution {
  int branch;
  TokenInterval queries;
  Slice q, kv;
};

struct Partial {
  std::vector<Contribution> sum;
  std::vector<TokenInterval> initialised;  // rows that hold a value, at every head
};

class Coverage {
 public:
  Coverage(const ShardedProblem& sharded, const RankProgram& program, Rank rank)
      : sharded_(sharded), program_(program), shard_(sharded.layout.shard(rank)), rank_(rank) {}

  std::vector<std::string> check_all() {
    for (const Op& op : program_.ops)
      std::visit(Overload{
                     [&](const Attend& o) { attend(o); },
                     [&](const Merge& o) { merge(o); },
                     [&](const Reset& o) {
                       partials_[o.into.slot] = {{}, {shard_}};
                     },
                     [](const auto&) {},
                 },
                 op.what);
    check_initialised();
    for (int b = 0; b < int(sharded_.pattern.branches.size()); ++b) check_branch(b);
    return std::move(faults_);
  }

 private:
  template <class... Parts>
  void fault(const Parts&... parts) {
    faults_.push_back(concat(parts...));
  }

  void attend(const Attend& o) {
    Partial& p = partials_[o.into.slot];
    if (o.into.rows.branch != kEveryRow) {
      p = {};  // a compact partial is written anew
    } else {
      if (o.into.slot != kOutputSlot) p = {};
      for (const TokenInterval& held : p.initialised)
        if (!intersect(held, o.queries).empty())
          fault("an attend overwrites output rows in ", held.begin, "..", held.end);
      if (sharded_.pattern.branches.at(size_t(o.branch)).dilation_rate != 1)
        fault("branch ", o.branch, " is attended in place but does not cover every row");
      p.initialised.push_back(intersect(o.queries, shard_));
    }
    p.sum.push_back({o.branch, o.queries, o.q.rows, o.kv.rows});
  }

  void merge(const Merge& o) {
    Partial& from = partials_[o.from.slot];
    Partial& into = partials_[o.into.slot];
    if (from.sum.empty())
      fault("a merge reads a partial that holds no result or was merged already");
    const TokenInterval rows = intersect(o.from.rows.within, shard_);
    int64_t ready = 0;
    for (const TokenInterval& held : into.initialised) ready += intersect(held, rows).length();
    if (ready < rows.length()) fault("a merge adds to rows that hold nothing yet");
    into.sum.insert(into.sum.end(), from.sum.begin(), from.sum.end());
    from.sum.clear();
  }

  void check_initialised() {
    int64_t rows = 0;
    for (const TokenInterval& held : partials_[kOutputSlot].initialised) rows += held.length();
    if (rows != shard_.length())
      fault("the output initialises ", rows, " of ", shard_.length(), " rows");
  }

  void check_branch(int b) {
    const BranchRows rows(sharded_.pattern, b, sharded_.problem.seq_len);
    std::vector<const Contribution*> mine;
    for (const Contribution& c : partials_[kOutputSlot].sum)
      if (c.branch == b) mine.push_back(&c);
    std::set<int64_t> offsets_done;  // heads of one offset meet the same rows
    for (int64_t head = 0; head < sharded_.problem.num_heads && faults_.size() < 5; ++head) {
      const int64_t offset = head_offset(sharded_.pattern.offset, head, sharded_.problem.num_heads,
                                         rows.dilation_rate());
      const bool all_heads = std::all_of(mine.begin(), mine.end(), [&](const Contribution* c) {
        return c->q.heads == sharded_.all_heads() && c->kv.heads == sharded_.all_heads();
      });
      if (all_heads && !offsets_done.insert(offset).second) continue;
      rows.for_each_run(offset, shard_, [&](int64_t segment, const TokenRange& run) {
        if (faults_.size() < 5) check_run(b, head, rows, segment, run, mine);
      });
    }
  }

  // All keys that the queries of one run have attended to, against the pattern's.
  void check_run(int b, int64_t head, const BranchRows& rows, int64_t segment,
                 const TokenRange& run, const std::vector<const Contribution*>& mine) {
    std::vector<TokenRange> keys;
    for (const Contribution* c : mine) {
      const TokenInterval hit = intersect(c->queries, {run.first, run.last() + 1});
      if (hit.empty() || c->q.owners.index_of(rank_) < 0 || !in(c->q.heads, head)) continue;
      if (!(c->queries.contains(run.first) && c->queries.contains(run.last())))
        return fault("branch ", b, ", segment ", segment,
                     ": an attend takes only some queries of a run");
      if (!in(c->kv.heads, head)) continue;
      const RowMap map(sharded_, TensorKind::kKeyValue, c->kv);
      for (const auto& piece : map.pieces())
        map.for_each_run(piece, b, head, rows.segment(segment),
                         [&](const TokenRange& k, int64_t) { keys.push_back(k); });
    }
    const int64_t last_visible = sharded_.problem.causal ? run.last() : sharded_.problem.seq_len;
    compare(b, head, segment, rows, std::move(keys), last_visible);
  }

  // Runs are disjoint, sorted pieces of one progression exactly when each token appears once. Keys
  // after the last visible one may be there or not: no query of the run sees them.
  void compare(int b, int64_t head, int64_t segment, const BranchRows& rows,
               std::vector<TokenRange> keys, int64_t last_visible) {
    const int64_t offset = head_offset(sharded_.pattern.offset, head, sharded_.problem.num_heads,
                                       rows.dilation_rate());
    std::vector<TokenRange> expected;
    const TokenInterval visible =
        intersect(rows.segment(segment), {0, std::min(last_visible + 1, sharded_.problem.seq_len)});
    rows.for_each_run(offset, visible,
                      [&](int64_t, const TokenRange& r) { expected.push_back(r); });
    for (TokenRange& k : keys) k = clip(k, visible);
    if (tokens_of(std::move(keys)) != tokens_of(std::move(expected)))
      fault("branch ", b, ", head ", head, ", segment ", segment,
            ": the keys attended to are not the pattern's, each once");
  }

  // A canonical list: sorted, neighbouring pieces of one progression joined, so equal multisets
  // that consist of ordered pieces compare equal. An overlap never joins and shows as a difference.
  std::vector<TokenRange> tokens_of(std::vector<TokenRange> runs) const {
    std::erase_if(runs, [](const TokenRange& r) { return r.empty(); });
    std::sort(runs.begin(), runs.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<TokenRange> joined;
    for (const TokenRange& r : runs) {
      if (!joined.empty() && joined.back().stride == r.stride &&
          joined.back()[joined.back().count] == r.first)
        joined.back().count += r.count;
      else
        joined.push_back(r);
    }
    return joined;
  }

  static bool in(const HeadRange& heads, int64_t head) {
    return head >= heads.first && head < heads.first + heads.count;
  }

  const ShardedProblem& sharded_;
  const RankProgram& program_;
  TokenInterval shard_;
  Rank rank_;
  std::map<int, Partial> partials_;
  std::vector<std::string> faults_;
};

}  // namespace

std::vector<std::string> check_coverage(const ShardedProblem& sharded, const RankProgram& program,
                                        Rank rank) {
  return Coverage(sharded, program, rank).check_all();
}

}  // namespace longnet
