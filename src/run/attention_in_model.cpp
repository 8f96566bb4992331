// The check of attention inside a model (run_checks.h).
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "core/random.h"
#include "run/run_checks.h"

namespace longnet {
namespace {

// Ranks that share a sequence and its heads work together; others have other rows.
class SequenceOfRanks {
 public:
  SequenceOfRanks(const RankGrid& grid, Communicator& comm)
      : comm_(comm),
        count_(grid.replicas * grid.head_groups),
        own_(grid.replica(comm.rank()) * grid.head_groups + grid.head_group(comm.rank())) {}
  int count() const { return count_; }  // number of such sequences
  void sum(std::vector<double>& values) const {
    among_own(values, 0, [&](std::span<double> all) { comm_.all_sum(all); });
  }
  void max(std::vector<double>& values) const {
    among_own(values, -INFINITY, [&](std::span<double> all) { comm_.all_max(all); });
  }

 private:
  void among_own(std::vector<double>& values, double none, const auto& reduce) const {
    std::vector<double> all(values.size() * size_t(count_), none);
    const auto own = all.begin() + std::ptrdiff_t(values.size()) * own_;
    std::ranges::copy(values, own);
    reduce(std::span(all));
    std::copy_n(own, values.size(), values.begin());
  }

  Communicator& comm_;
  int count_, own_;
};

class ModelRows {
 public:
  ModelRows(const Executor& executor, std::vector<QuerySample> samples,
            const SequenceOfRanks& ranks)
      : bound_(executor.on_host(std::array{kQuerySlot, kKvSlot})),
        samples_(std::move(samples)),
        ranks_(ranks) {
    std::vector<float> row;
    for (const QuerySample& sample : samples_) {
      read_row(Tensor::kQuery, sample, row);
      row.resize(head_dim());  // 0 where another rank has it
      queries_.insert(queries_.end(), row.begin(), row.end());
    }
    ranks_.sum(queries_);
  }

  // Each rank computes what the samples see of its own keys; the parts of all are merged.
  std::vector<DefinedRow> rows_by_definition() const {
    DilatedPattern part = bound_->sharded().pattern;
    const MixRule mix = part.mix;
    part.mix = MixRule::kLse;
    if (mix == MixRule::kLse || mix == MixRule::kLseDetached) return rows_of(part);
    const std::vector<DilatedBranch> branches = part.branches;
    const double share = mix == MixRule::kMean ? 1.0 / double(branches.size()) : 1.0;
    std::vector<DefinedRow> sum(samples_.size(), {std::vector<double>(head_dim(), 0.0), -INFINITY});
    for (const DilatedBranch& branch : branches) {
      part.branches = {branch};
      const std::vector<DefinedRow> rows = rows_of(part);
      for (size_t i = 0; i < rows.size(); ++i) {
        for (size_t c = 0; c < head_dim(); ++c) sum[i].o[c] += share * rows[i].o[c];
        if (const double top = std::max(sum[i].lse, rows[i].lse); top != -INFINITY)
          sum[i].lse = top + std::log(std::exp(sum[i].lse - top) + std::exp(rows[i].lse - top));
      }
    }
    return sum;
  }

 private:
  size_t head_dim() const { return size_t(bound_->sharded().problem.head_dim); }

  // Row of Q, K or V in the slots of layer 0, as the attention that ran last there has taken it,
  // of a sequence of its batch; empty where another rank has the token.
  void read_row(Tensor tensor, const QuerySample& at, std::vector<float>& row) const {
    row.clear();
    const AttentionProblem& p = bound_->sharded().problem;
    const int64_t in_shard = bound_->shard().index_of(at.token), tokens = bound_->shard().tokens();
    if (in_shard < 0) return;
    const bool query = tensor == Tensor::kQuery;
    const int64_t heads = query ? p.num_heads : p.num_kv_heads;
    int64_t index = (at.batch * tokens + in_shard) * heads + at.head;
    if (tensor == Tensor::kValue) index += p.batch * tokens * heads;  // behind all K
    const std::byte* const values = bound_->memory(query ? kQuerySlot : kKvSlot).data();
    for (int64_t i = index * p.head_dim; i < (index + 1) * p.head_dim; ++i)
      row.push_back(p.dtype == DType::kBFloat16
                        ? bf16_value(reinterpret_cast<const uint16_t*>(values)[i])
                        : reinterpret_cast<const float*>(values)[i]);
  }

  std::vector<DefinedRow> rows_of(const DilatedPattern& pattern) const {
    const auto read = [&](Tensor tensor, const QuerySample& at, std::vector<float>& row) {
      if (tensor != Tensor::kQuery) return read_row(tensor, at, row);
      const auto sample = size_t(std::ranges::find(samples_, at) - samples_.begin());
      const double* const q = &queries_[head_dim() * sample];
      row.assign(q, q + head_dim());
    };
    auto rows = attended_rows(bound_->sharded().problem, pattern, samples_, read);
    merge_parts(rows);
    return rows;
  }

  // Softmax over all ranks' keys, of rows over each rank's own.
  void merge_parts(std::vector<DefinedRow>& rows) const {
    std::vector<double> top, sums;
    for (const DefinedRow& row : rows) top.push_back(row.lse);
    ranks_.max(top);
    for (size_t i = 0; i < rows.size(); ++i) {
      const double weight = rows[i].lse == -INFINITY ? 0 : std::exp(rows[i].lse - top[i]);
      for (const double x : rows[i].o) sums.push_back(weight == 0 ? 0 : weight * x);
      sums.push_back(weight);
    }
    ranks_.sum(sums);
    const double* at = sums.data();
    for (size_t i = 0; i < rows.size(); ++i, at += head_dim() + 1) {
      const double weight = at[head_dim()];
      for (size_t c = 0; c < head_dim(); ++c) rows[i].o[c] = weight > 0 ? at[c] / weight : 0;
      rows[i].lse = weight > 0 ? top[i] + std::log(weight) : -INFINITY;
    }
  }

  std::shared_ptr<const BoundProgram> bound_;  // in memory of the host
  std::vector<QuerySample> samples_;
  const SequenceOfRanks& ranks_;
  std::vector<double> queries_;  // rows of Q of all samples
};

}  // namespace

AttentionInModel check_attention_in_model(const Executor& executor, const CheckConfig& config,
                                          Communicator& comm) {
  const ShardedProblem& s = executor.sharded();
  const RankGrid& grid = s.layout.grid();
  const SequenceOfRanks ranks(grid, comm);
  std::vector<Rank> first_sequence;
  for (Rank p = 0; p < grid.sequence; ++p) first_sequence.push_back(grid.placed(p, 0));
  SampleChoice choice =
      stratify(s, choose_samples(s, config.sampled_queries), config.max_queries, first_sequence);
  const std::vector<QuerySample>& samples = choice.queries;
  const std::vector<DefinedRow> rows = ModelRows(executor, samples, ranks).rows_by_definition();
  const auto known = [&](const auto&, const auto&, const std::vector<QuerySample>& some) {
    std::vector<DefinedRow> out;
    for (const QuerySample& sample : some)
      out.push_back(rows[size_t(std::ranges::find(samples, sample) - samples.begin())]);
    return out;
  };
  CheckOutcome outcome = check_samples(executor, samples, comm, /*tolerance=*/0, known);
  outcome.pass = outcome.pass && outcome.queries == std::ssize(samples) * ranks.count();
  return {outcome, std::move(choice)};
}

}  // namespace longnet
