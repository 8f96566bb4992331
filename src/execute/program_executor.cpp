#include "execute/program_executor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/check.h"
#include "core/random.h"
#include "schedule/accounting.h"

namespace longnet {

namespace {

struct LseCopy {
  const float* from;
  float* into;
  int64_t from_stride, into_stride, rows;
};

}  // namespace

// What run() needs of an op, ready made.
struct ProgramExecutor::BoundOp {
  std::vector<AttendTask> attends;
  std::vector<KvRun> kv_runs;  // the attends' spans point into it
  std::vector<MergeTask> merges;
  std::vector<PackTask> packs, float_packs;  // of Q, K, V and results; of O
  std::vector<PackTask> rounds, widens;      // of O into results, and back
  std::vector<LseCopy> lse_copies;
  std::vector<std::span<float>> zeros, absent;  // O and LSE that a reset fills
  int64_t tasks_per_poke = 0;
  // Communications.
  Rank peer = -1;
  RankGroup group;
  std::span<std::byte> from, into;
  std::vector<int64_t> from_counts, into_counts;
  Communicator::Request request = -1;
};

namespace {

constexpr int64_t kRowsPerTask = 2048;       // queries: enough to make packing keys cheap
constexpr int64_t kFewestRowsPerTask = 256;  // below, packing costs more than an idle thread
constexpr double kFlopsPerPoke = 1e9;  // about 10 ms of one core between two looks at messages

}  // namespace

ProgramExecutor::ProgramExecutor(const Schedule& schedule, const AttentionKernel& kernel,
                                 int threads, Communicator& comm, MemoryLedger& ledger)
    : sharded_(schedule.sharded),
      program_(schedule.program(comm.rank())),
      kernel_(kernel),
      threads_(threads),
      comm_(comm) {
  check(comm.size() == sharded_.layout.world_size(), "the schedule is for ",
        sharded_.layout.world_size(), " ranks, the communicator has ", comm.size());
  const AttentionProblem& p = sharded_.problem;
  const MixRule mix = sharded_.pattern.mix;
  options_ = {.head_dim = p.head_dim, .dtype = p.dtype, .causal = p.causal};
  if (mix == MixRule::kMean) options_.output_scale = 1.0f / float(sharded_.pattern.branches.size());
  merge_rule_ = mix == MixRule::kLse ? MergeRule::kLse : MergeRule::kSum;
  const std::string refusal = kernel.why_unsupported(options_);
  check(refusal.empty(), "kernel ", kernel.name(), ": ", refusal);

  for (const Slot& slot : program_.slots)
    slots_.emplace_back(ledger, std::string(to_string(slot.tag)), slot.bytes);
  workspace_ = TaggedBuffer(ledger, "workspace", kernel.workspace_bytes(options_, threads));
  bound_.resize(program_.ops.size());
  times_.resize(program_.ops.size());
  in_flight_.reserve(program_.ops.size());
  for (const Op& op : program_.ops) {
    auto& before = communications_before_.emplace_back();
    for (OpId a : op.after) {
      if (is_communication(program_.ops[size_t(a)].what))
        before.push_back(a);
      else
        before.insert(before.end(), communications_before_[size_t(a)].begin(),
                      communications_before_[size_t(a)].end());
    }
  }
  for (size_t i = 0; i < program_.ops.size(); ++i) bind(program_.ops[i], bound_[i]);
}

ProgramExecutor::~ProgramExecutor() {
  if (!in_flight_.empty()) comm_.abandon();
}

void ProgramExecutor::bind(const Op& op, BoundOp& bound) {
  const auto kind_of = [&](const Held& held) { return program_.slots[size_t(held.slot)].kind; };
  const auto bytes_of = [&](const Held& held) {
    const RowMap map(sharded_, kind_of(held), held.rows);
    return slots_[size_t(held.slot)].bytes().subspan(size_t(map.begin_byte(held)),
                                                     size_t(map.num_bytes(held)));
  };
  const auto piece_sizes = [&](const Held& held) {
    const RowMap map(sharded_, kind_of(held), held.rows);
    std::vector<int64_t> sizes;
    for (const auto& piece : map.pieces()) sizes.push_back(map.piece_bytes(piece));
    return sizes;
  };
  std::visit(Overload{
                 [&](const Select& o) { bind_select(o, bound); },
                 [&](const Send& o) { bound.peer = o.to, bound.from = bytes_of(o.what); },
                 [&](const Recv& o) { bound.peer = o.from, bound.into = bytes_of(o.what); },
                 [&](const AllGather& o) {
                   check(o.into.rows.owners == o.group, "pieces in another order than the group's");
                   bound.group = o.group, bound.into = bytes_of(o.into);
                   bound.into_counts = piece_sizes(o.into);
                 },
                 [&](const AllToAll& o) {
                   bound.group = o.group;
                   bound.from = bytes_of(o.from), bound.from_counts = piece_sizes(o.from);
                   bound.into = bytes_of(o.into), bound.into_counts = piece_sizes(o.into);
                 },
                 [&](const ReduceScatter&) {
                   check(false, "a reduce_scatter must be lowered before it runs");
                 },
                 [&](const Attend& o) { bind_attend(o, bound); },
                 [&](const Merge& o) { bind_merge(o, bound); },
                 [&](const Reset& o) { bind_reset(o, bound); },
             },
             op.what);
}

PartialRun ProgramExecutor::partial_at(const Held& held, const RowMap::Piece& piece,
                                       RowMap::Place place) const {
  const int64_t d = sharded_.problem.head_dim;
  auto* const o = reinterpret_cast<float*>(slots_[size_t(held.slot)].data() + piece.byte_offset);
  return {.o = o + place.row * d,
          .lse = o + piece.rows * d + place.row,
          .o_stride = place.step * d,
          .lse_stride = place.step};
}

// The key runs of one (sequence, head), segment by segment, appended to a list of all.
class ProgramExecutor::KeyLists {
 public:
  struct List {
    size_t begin, count;
    int64_t keys;
  };
  KeyLists(const ProgramExecutor& executor, const Attend& op, const RowMap& keys,
           const BranchRows& rows, int64_t batch, int64_t head, std::vector<KvRun>& all)
      : executor_(executor),
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
    const AttentionProblem& p = executor_.sharded_.problem;
    const int64_t row = p.head_dim * dtype_bytes(p.dtype);
    const std::byte* const base = executor_.slots_[size_t(op_.kv.slot)].data();
    List list{all_.size(), 0, 0};
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
        list.keys += k.count;
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
    List list{segments == 1 ? all_.size() : whole_[first % segments].begin, 0, 0};
    if (first < segments) list.begin = whole_[first].begin;
    for (size_t i = 0; i + 1 < segments; ++i) {
      const List& part = whole_[(first % segments == 0 ? 0 : first) + i];
      list.count += part.count;
      list.keys += part.keys;
    }
    return list;
  }

  const ProgramExecutor& executor_;
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

void ProgramExecutor::bind_attend(const Attend& op, BoundOp& bound) {
  const AttentionProblem& p = sharded_.problem;
  const RowMap queries(sharded_, TensorKind::kQuery, op.q.rows);
  const RowMap keys(sharded_, TensorKind::kKeyValue, op.kv.rows);
  const RowMap out(sharded_, TensorKind::kPartial, op.into.rows);
  const BranchRows rows(sharded_.pattern, op.branch, p.seq_len);
  const int64_t row = p.head_dim * dtype_bytes(p.dtype);
  const std::byte* const q_base = slots_[size_t(op.q.slot)].data();

  // Pieces of queries and results belong together by owner; gathers may have ordered the queries.
  const auto out_of = [&](size_t q_piece) -> const RowMap::Piece& {
    const int i = op.into.rows.owners.index_of(queries.pieces()[q_piece].owner);
    return out.pieces().at(size_t(i));
  };
  struct Span {
    size_t begin, count;
  };
  std::vector<Span> spans;  // of each task in kv_runs, which still grows
  double pairs = 0;
  // Short queries are cut so that every thread has some.
  const int64_t rows_per_thread =
      ceil_div(shard().tokens() * op.heads.count * p.batch, int64_t{threads_});
  const int64_t rows_per_task = std::clamp(rows_per_thread, kFewestRowsPerTask, kRowsPerTask);
  const auto add_tasks = [&](const LocatedRun& run, const Span& span, int64_t num_keys) {
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
      pairs += double(count) * double(num_keys);
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
        add_tasks(run, {list.begin, list.count}, list.keys);
      }
    }
  for (size_t i = 0; i < spans.size(); ++i)
    bound.attends[i].kv =
        std::span<const KvRun>(bound.kv_runs).subspan(spans[i].begin, spans[i].count);

  const double flops_per_task =
      4.0 * double(p.head_dim) * pairs / std::max<double>(1, double(spans.size()));
  bound.tasks_per_poke = std::max<int64_t>(
      threads_, int64_t(kFlopsPerPoke * threads_ / std::max(flops_per_task, 1.0)));
}

namespace {

// Calls fn(run) for the rows of a piece, for one head: a branch's runs, or its tokens.
template <class Fn>
void for_each_row_run(const RowMap& map, const RowMap::Piece& piece, int64_t head, Fn fn) {
  if (map.slice().branch == kEveryRow) {
    for (const TokenRange& r : piece.tokens) fn(r);
  } else {
    map.for_each_run(piece, map.slice().branch, head, map.slice().within,
                     [&](const TokenRange& run, int64_t) { fn(run); });
  }
}

}  // namespace

void ProgramExecutor::bind_merge(const Merge& op, BoundOp& bound) {
  const RowMap from(sharded_, TensorKind::kPartial, op.from.rows),
      into(sharded_, TensorKind::kPartial, op.into.rows);
  const auto target_of = [&](const RowMap::Piece& source) -> const RowMap::Piece& {
    for (int j = 0; j < op.into.num_pieces(); ++j) {
      const auto& piece = into.pieces()[size_t(op.into.first_piece() + j)];
      if (piece.owner == source.owner && piece.heads.first <= source.heads.first &&
          piece.heads.first + piece.heads.count >= source.heads.first + source.heads.count)
        return piece;
    }
    throw Error(concat("a merge's target holds no rows of rank ", source.owner));
  };
  for (int i = 0; i < op.from.num_pieces(); ++i) {
    const auto& a = from.pieces()[size_t(op.from.first_piece() + i)];
    const auto& b = target_of(a);
    for (int64_t batch = 0; batch < sharded_.problem.batch; ++batch)
      for (int64_t head = a.heads.first; head < a.heads.first + a.heads.count; ++head)
        for_each_row_run(from, a, head, [&](const TokenRange& run) {
          bound.merges.push_back({.from = partial_at(op.from, a, from.locate(a, batch, head, run)),
                                  .into = partial_at(op.into, b, into.locate(b, batch, head, run)),
                                  .rows = run.count});
        });
  }
}

void ProgramExecutor::bind_select(const Select& op, BoundOp& bound) {
  const AttentionProblem& p = sharded_.problem;
  const TensorKind kind = program_.slots[size_t(op.from.slot)].kind;
  const TensorKind into_kind = program_.slots[size_t(op.into.slot)].kind;
  const RowMap from(sharded_, kind, op.from.rows), into(sharded_, into_kind, op.into.rows);
  const auto &a = from.pieces()[size_t(op.from.first_piece())],
             &b = into.pieces()[size_t(op.into.first_piece())];
  std::byte* const source = slots_[size_t(op.from.slot)].data() + a.byte_offset;
  std::byte* const target = slots_[size_t(op.into.slot)].data() + b.byte_offset;
  const auto o_bytes = [&](TensorKind k) {
    return k == TensorKind::kPartial ? int64_t{sizeof(float)} : dtype_bytes(p.dtype);
  };
  const int64_t from_row = p.head_dim * o_bytes(kind), into_row = p.head_dim * o_bytes(into_kind);
  const bool partial = kind == TensorKind::kPartial && into_kind == kind;
  auto& packs = kind != into_kind ? (kind == TensorKind::kPartial ? bound.rounds : bound.widens)
                : partial         ? bound.float_packs
                                  : bound.packs;
  const auto copy = [&](int64_t batch, int64_t head, const TokenRange& run) {
    const auto x = from.locate(a, batch, head, run), y = into.locate(b, batch, head, run);
    const auto pack = [&](int64_t x_offset, int64_t y_offset) {
      packs.push_back({.from = source + (x.row + x_offset) * from_row,
                       .into = target + (y.row + y_offset) * into_row,
                       .from_stride = x.step * p.head_dim,
                       .into_stride = y.step * p.head_dim,
                       .rows = run.count});
    };
    pack(0, 0);
    if (kind == TensorKind::kKeyValue) pack(a.rows, b.rows);  // V lies behind all K
    if (partial)
      bound.lse_copies.push_back(
          {reinterpret_cast<const float*>(source + a.rows * from_row) + x.row,
           reinterpret_cast<float*>(target + b.rows * into_row) + y.row, x.step, y.step,
           run.count});
  };
  const int64_t first = std::max(a.heads.first, b.heads.first);
  const int64_t end = std::min(a.heads.first + a.heads.count, b.heads.first + b.heads.count);
  const int branch = op.into.rows.branch;
  for (int64_t batch = 0; batch < p.batch; ++batch) {
    std::vector<KvStream> done;  // heads that share a K/V stream share its rows
    for (int64_t head = first; head < end; ++head) {
      if (kind == TensorKind::kKeyValue) {
        const KvStream stream =
            branch == kEveryRow ? KvStream{p.kv_head_of(head), 0}
                                : kv_streams(p, sharded_.pattern, branch, head, 1).streams.front();
        if (std::find(done.begin(), done.end(), stream) != done.end()) continue;
        done.push_back(stream);
      }
      for_each_row_run(into, b, head, [&](const TokenRange& run) { copy(batch, head, run); });
    }
  }
}

void ProgramExecutor::bind_reset(const Reset& op, BoundOp& bound) {
  const RowMap map(sharded_, TensorKind::kPartial, op.into.rows);
  for (const auto& piece : map.pieces()) {
    auto* const o =
        reinterpret_cast<float*>(slots_[size_t(op.into.slot)].data() + piece.byte_offset);
    const size_t values = size_t(piece.rows * sharded_.problem.head_dim);
    bound.zeros.push_back({o, values});
    bound.absent.push_back({o + values, size_t(piece.rows)});
  }
}

void ProgramExecutor::fill_inputs() {
  const AttentionProblem& p = sharded_.problem;
  for (const BoundOp& bound : bound_)
    if (!bound.into_counts.empty()) comm_.open_group(bound.group);
  for (TaggedBuffer& slot : slots_)  // NaN in fp32 and bf16
    std::fill_n(slot.data(), slot.size(), std::byte{0xFF});
  const auto fill = [&](Tensor tensor, int64_t heads, std::byte* at) {
    for (int64_t batch = 0; batch < p.batch; ++batch)
      for (const TokenRange& range : shard())
        for (int64_t i = 0; i < range.count; ++i)
          for (int64_t head = 0; head < heads; ++head, at += p.head_dim * dtype_bytes(p.dtype)) {
            const RowKey key{p.seed, tensor, batch * p.seq_len + range[i], head};
            if (p.dtype == DType::kFloat32)
              generate_row(key, p.head_dim, reinterpret_cast<float*>(at));
            else
              generate_row(key, p.head_dim, reinterpret_cast<uint16_t*>(at));
          }
  };
  std::byte* const kv = slots_[kKvSlot].data();
  fill(Tensor::kQuery, p.num_heads, slots_[kQuerySlot].data());
  fill(Tensor::kKey, p.num_kv_heads, kv);
  fill(Tensor::kValue, p.num_kv_heads, kv + slots_[kKvSlot].size() / 2);
}

double ProgramExecutor::elapsed() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

void ProgramExecutor::run(RunMode mode) {
  start_ = std::chrono::steady_clock::now();
  waited_s_ = 0;
  in_flight_.clear();
  for (size_t i = 0; i < program_.ops.size(); ++i) {
    times_[i] = {};
    const bool communicates = is_communication(program_.ops[i].what);
    if (mode == (communicates ? RunMode::kComputeOnly : RunMode::kCommunicationOnly)) continue;
    const double before = elapsed();
    // Without the computing ops their own dependencies still hold.
    for (OpId a :
         mode == RunMode::kCommunicationOnly ? communications_before_[i] : program_.ops[i].after)
      wait_for(size_t(a));
    if (mode == RunMode::kSerialised && !communicates)
      while (!in_flight_.empty()) wait_for(in_flight_.front());
    times_[i].begin_s = elapsed();
    if (communicates) {
      post(i);
      waited_s_ += elapsed() - before;
    } else {
      waited_s_ += times_[i].begin_s - before;
      execute(i);
      times_[i].end_s = elapsed();
    }
  }
  const double before = elapsed();
  while (!in_flight_.empty()) wait_for(in_flight_.front());
  waited_s_ += elapsed() - before;
}

void ProgramExecutor::post(size_t op) {
  BoundOp& b = bound_[op];
  std::visit(
      Overload{
          [&](const Send&) { b.request = comm_.isend(b.peer, b.from); },
          [&](const Recv&) { b.request = comm_.irecv(b.peer, b.into); },
          [&](const AllGather&) { b.request = comm_.iall_gather(b.group, b.into, b.into_counts); },
          [&](const AllToAll&) {
            b.request = comm_.iall_to_all(b.group, b.from, b.from_counts, b.into, b.into_counts);
          },
          [](const auto&) {},
      },
      program_.ops[op].what);
  in_flight_.push_back(op);
}

void ProgramExecutor::wait_for(size_t op) {
  const auto it = std::find(in_flight_.begin(), in_flight_.end(), op);
  if (it == in_flight_.end()) return;
  comm_.wait(bound_[op].request);
  times_[op].end_s = elapsed();
  in_flight_.erase(it);
}

void ProgramExecutor::poke() {
  std::erase_if(in_flight_, [&](size_t op) {
    if (!comm_.test(bound_[op].request)) return false;
    times_[op].end_s = elapsed();
    return true;
  });
}

void ProgramExecutor::execute(size_t op) {
  BoundOp& b = bound_[op];
  std::visit(Overload{
                 [&](const Select&) {
                   kernel_.pack(b.packs, options_, threads_);
                   AttendOptions floats = options_;
                   floats.dtype = DType::kFloat32;
                   kernel_.pack(b.float_packs, floats, threads_);
                   kernel_.round(b.rounds, options_, threads_);
                   kernel_.widen(b.widens, options_, threads_);
                   for (const LseCopy& c : b.lse_copies)
                     for (int64_t i = 0; i < c.rows; ++i)
                       c.into[i * c.into_stride] = c.from[i * c.from_stride];
                 },
                 [&](const Attend&) {
                   const std::span<const AttendTask> all = b.attends;
                   for (size_t at = 0; at < all.size();) {
                     const size_t n = in_flight_.empty()
                                          ? all.size() - at
                                          : std::min(size_t(b.tasks_per_poke), all.size() - at);
                     kernel_.attend(all.subspan(at, n), options_, threads_, workspace_.bytes());
                     at += n;
                     if (!in_flight_.empty()) poke();
                   }
                 },
                 [&](const Merge&) { kernel_.merge(b.merges, merge_rule_, options_, threads_); },
                 [&](const Reset&) {
                   for (auto values : b.zeros) std::fill(values.begin(), values.end(), 0.0f);
                   for (auto values : b.absent)
                     std::fill(values.begin(), values.end(),
                               -std::numeric_limits<float>::infinity());
                 },
                 [](const auto&) {},
             },
             program_.ops[op].what);
}

double ProgramExecutor::time_single_attend() {
  const AttentionProblem& p = sharded_.problem;
  const double pairs = account(sharded_, program_, comm_.rank()).pairs;
  const Slice own{kEveryRow, {.first = comm_.rank()}, sharded_.all_tokens(), sharded_.all_heads()};
  const double rows = double(shard().tokens());
  if (rows == 0 || pairs == 0) return 0;
  const double own_pairs = rows * rows * double(p.num_heads) * double(p.batch);
  ShardedProblem dense = sharded_;
  dense.pattern = dense_pattern(p.seq_len);
  BoundOp bound;
  std::swap(dense, sharded_);
  bind_attend({0,
               sharded_.all_tokens(),
               sharded_.all_heads(),
               {kQuerySlot, own},
               {kKvSlot, own},
               {kOutputSlot, own}},
              bound);
  std::swap(dense, sharded_);
  // As many queries as the pairs ask for, or each list of keys as often.
  const int64_t repeats = std::max<int64_t>(1, std::llround(pairs / own_pairs));
  std::vector<std::vector<KvRun>> lists;
  std::vector<AttendTask> tasks;
  double timed = 0;
  for (AttendTask task : bound.attends) {
    auto& list = lists.emplace_back();
    for (int64_t i = 0; i < repeats; ++i) list.insert(list.end(), task.kv.begin(), task.kv.end());
    double keys = 0;
    for (const KvRun& kv : list) keys += double(kv.rows);
    const double wanted = std::ceil((pairs - timed) / keys);
    task.q.rows = std::clamp<int64_t>(int64_t(wanted), 1, task.q.rows);
    timed += double(task.q.rows) * keys;
    tasks.push_back(task);
    if (timed >= pairs) break;
  }
  for (size_t i = 0; i < tasks.size(); ++i) tasks[i].kv = lists[i];
  AttendOptions unmasked = options_;
  unmasked.causal = false;
  const auto start = std::chrono::steady_clock::now();
  kernel_.attend(tasks, unmasked, threads_, workspace_.bytes());
  const double took =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return took * pairs / timed;
}

RunPhases ProgramExecutor::phases() const {
  RunPhases phases{.exposed_communication_s = waited_s_};
  for (size_t i = 0; i < times_.size(); ++i) {
    if (is_communication(program_.ops[i].what)) continue;
    (std::holds_alternative<Merge>(program_.ops[i].what) ? phases.merge_s : phases.compute_s) +=
        times_[i].end_s - times_[i].begin_s;
  }
  return phases;
}

int64_t ProgramExecutor::output_index(int64_t batch, int64_t head, int64_t token) const {
  const TokenRanges mine = shard();
  const int64_t at = mine.index_of(token);
  check(at >= 0, "token ", token, " is not on this rank");
  return (batch * mine.tokens() + at) * sharded_.problem.num_heads + head;
}

std::span<const float> ProgramExecutor::output_row(int64_t batch, int64_t head,
                                                   int64_t token) const {
  const int64_t d = sharded_.problem.head_dim;
  return {reinterpret_cast<const float*>(slots_[kOutputSlot].data()) +
              output_index(batch, head, token) * d,
          size_t(d)};
}

float ProgramExecutor::output_lse(int64_t batch, int64_t head, int64_t token) const {
  const AttentionProblem& p = sharded_.problem;
  const int64_t rows = p.batch * shard().tokens() * p.num_heads;
  return reinterpret_cast<const float*>(
      slots_[kOutputSlot].data())[rows * p.head_dim + output_index(batch, head, token)];
}

int64_t ProgramExecutor::count_nan() const {
  const AttentionProblem& p = sharded_.problem;
  const int64_t rows = p.batch * shard().tokens() * p.num_heads;
  const std::span<const float> values{reinterpret_cast<const float*>(slots_[kOutputSlot].data()),
                                      size_t(rows * (p.head_dim + output_has_lse()))};
  return std::count_if(values.begin(), values.end(), [](float x) { return std::isnan(x); });
}

}  // namespace longnet
