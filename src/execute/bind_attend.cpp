// Binds attends: which rows of which slot each task reads and writes.
//
// N = 16, P = 4, branch {8, 2}, rank 1 (tokens 4 to 7), head 0: its queries 4 and 6 become one
// task; the task's keys 0 2 4 6 lie in a gathered slot as two runs, 0 2 (of rank 0) and 4 6 (of
// rank 1).
#include <algorithm>

#include "core/check.h"
#include "execute/bound_program.h"

namespace longnet {

namespace {

constexpr int64_t kRowsPerTask = 2048;       // queries: enough to make packing keys cheap
constexpr int64_t kFewestRowsPerTask = 256;  // below, packing costs more than an idle thread

}  // namespace

// The key runs of one (sequence, head), segment by segment, appended to a list of all.
class BoundProgram::KeyLists {
 public:
  struct List {
    size_t begin, count;
  };
  KeyLists(const BoundProgram& program, const Attend& op, const RowMap& keys,
           const BranchRows& rows, int64_t batch, int64_t head, std::vector<KvRun>& all)
      : program_(program),
        op_(op),
        map_(keys),
        rows_(rows),
        batch_(batch),
        head_(head),
        all_(all) {}

  List of_segment(int64_t segment) {
    if (rows_.is_summary()) return all_but(segment);
    if (segment != last_segment_) {
      last_segment_ = segment;
      last_ = append(rows_.segment(segment));
    }
    return last_;
  }

 private:
  List append(TokenInterval within) {
    const AttentionProblem& p = program_.sharded_.problem;
    const int64_t row = p.head_dim * dtype_bytes(p.dtype);
    const std::byte* const base = program_.memory_[size_t(op_.kv.slot)].data();
    List list{all_.size(), 0};
    for (const auto& piece : map_.pieces())
      map_.for_each_run(piece, op_.branch, head_, within, [&](const TokenRange& k, int64_t) {
        const auto place = map_.locate(piece, batch_, head_, k);
        const std::byte* const at = base + piece.byte_offset + place.row * row;
        all_.push_back({.k = at,
                        .v = at + piece.rows * row,
                        .row_stride = place.step * p.head_dim,
                        .rows = k.count,
                        .first_token = k.first,
                        .token_step = k.stride});
      });
    list.count = all_.size() - list.begin;
    return list;
  }

  List all_but(int64_t segment) {
    if (whole_.empty()) {
      for (const int round : {0, 1})
        for (int64_t s = 0; s < rows_.num_segments(); ++s) {
          if (round == 1 && s + 1 == rows_.num_segments()) break;
          whole_.push_back(append(rows_.segment(s)));
        }
    }
    const size_t segments = size_t(rows_.num_segments()), first = size_t(segment) + 1;
    List list{segments == 1 ? all_.size() : whole_[first % segments].begin, 0};
    if (first < segments) list.begin = whole_[first].begin;
    for (size_t i = 0; i + 1 < segments; ++i)
      list.count += whole_[(first % segments == 0 ? 0 : first) + i].count;
    return list;
  }

  const BoundProgram& program_;
  const Attend& op_;
  const RowMap& map_;
  const BranchRows& rows_;
  int64_t batch_, head_;
  std::vector<KvRun>& all_;
  int64_t last_segment_ = -1;
  List last_{};
  std::vector<List> whole_;  // of the segments 0 .. n-1, 0 .. n-2
};

namespace {

// Runs that continue each other in memory and in the sequence become one.
struct LocatedRun {
  TokenRange tokens;
  int64_t segment;
  RowMap::Place q, out;
  size_t piece;
};

bool continues(const LocatedRun& a, const LocatedRun& b) {
  return a.piece == b.piece && a.segment == b.segment && a.tokens.stride == b.tokens.stride &&
         a.tokens[a.tokens.count] == b.tokens.first && a.q.step == b.q.step &&
         a.q.row + a.tokens.count * a.q.step == b.q.row;
}

}  // namespace

void BoundProgram::bind_attend(const Attend& op, BoundOp& bound) {
  const AttentionProblem& p = sharded_.problem;
  const RowMap queries(sharded_, TensorKind::kQuery, op.q.rows);
  const RowMap keys(sharded_, TensorKind::kKeyValue, op.kv.rows);
  const RowMap out(sharded_, TensorKind::kPartial, op.into.rows);
  const BranchRows rows(sharded_.pattern, op.branch, p.seq_len);
  const int64_t row = p.head_dim * dtype_bytes(p.dtype);
  const std::byte* const q_base = memory_[size_t(op.q.slot)].data();

  // Pieces of queries and results belong together by owner; gathers may have ordered the queries.
  const auto out_of = [&](size_t q_piece) -> const RowMap::Piece& {
    const int i = op.into.rows.owners.index_of(queries.pieces()[q_piece].owner);
    return out.pieces().at(size_t(i));
  };
  struct Span {
    size_t begin, count;
  };
  std::vector<Span> spans;  // of each task in kv_runs, which still grows
  // Short queries are cut so that every thread has some.
  const int64_t rows_per_thread =
      ceil_div(shard().tokens() * op.heads.count * p.batch, int64_t{threads_});
  const int64_t rows_per_task = std::clamp(rows_per_thread, kFewestRowsPerTask, kRowsPerTask);
  const auto add_tasks = [&](const LocatedRun& run, const Span& span) {
    const auto &q_piece = queries.pieces()[run.piece], &out_piece = out_of(run.piece);
    for (int64_t at = 0; at < run.tokens.count; at += rows_per_task) {
      const int64_t count = std::min(rows_per_task, run.tokens.count - at);
      bound.attends.push_back(
          {.q = {.q = q_base + q_piece.byte_offset + (run.q.row + at * run.q.step) * row,
                 .row_stride = run.q.step * p.head_dim,
                 .rows = count,
                 .first_token = run.tokens[at],
                 .token_step = run.tokens.stride},
           .kv = {},
           .out = partial_at(op.into, out_piece, {run.out.row + at * run.out.step, run.out.step})});
      spans.push_back(span);
    }
  };
  for (int64_t batch = 0; batch < p.batch; ++batch)
    for (int64_t head = op.heads.first; head < op.heads.first + op.heads.count; ++head) {
      std::vector<LocatedRun> runs;
      for (size_t i = 0; i < queries.pieces().size(); ++i)
        queries.for_each_run(queries.pieces()[i], op.branch, head, op.queries,
                             [&](const TokenRange& tokens, int64_t segment) {
                               const LocatedRun run{
                                   tokens, segment,
                                   queries.locate(queries.pieces()[i], batch, head, tokens),
                                   out.locate(out_of(i), batch, head, tokens), i};
                               if (!runs.empty() && continues(runs.back(), run))
                                 runs.back().tokens.count += tokens.count;
                               else
                                 runs.push_back(run);
                             });
      // A segment's keys serve all its runs; a summary branch has one list for all segments, put
      // down twice, so that "all but one segment" is a contiguous part of it.
      KeyLists lists(*this, op, keys, rows, batch, head, bound.kv_runs);
      for (const LocatedRun& run : runs) {
        const auto list = lists.of_segment(run.segment);
        add_tasks(run, {list.begin, list.count});
      }
    }
  for (size_t i = 0; i < spans.size(); ++i)
    bound.attends[i].kv =
        std::span<const KvRun>(bound.kv_runs).subspan(spans[i].begin, spans[i].count);
}

}  // namespace longnet
