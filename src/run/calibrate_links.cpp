// Times messages between two ranks, and those of a ring beside its attends (calibrate.h).
#include <algorithm>
#include <span>

#include "execute/program_executor.h"
#include "kernels/attention_kernel.h"
#include "run/calibrate.h"
#include "schedule/registry.h"

namespace longnet {

LinkMeasurement measure_link(Communicator& comm, Rank a, Rank b, const CalibrationBudget& budget) {
  constexpr int64_t kSmallMessage = 1024;
  const bool first = comm.rank() == a, takes_part = first || comm.rank() == b;
  const Rank other = first ? b : a;
  std::vector<std::byte> out(size_t(budget.max_message_bytes), std::byte{1}), in(out.size());
  const auto send = [&](int64_t n) { return comm.isend(other, std::span(out).first(size_t(n))); };
  const auto receive = [&](int64_t n) { return comm.irecv(other, std::span(in).first(size_t(n))); };
  // Seconds of one run; `run` is one side's part, repeated so that clocks see enough.
  const auto time = [&](double expected_s, const auto& run) {
    const int repeats = std::clamp(int(100e-6 / std::max(expected_s, 1e-7)), 1, 100);
    return quartile_seconds(comm, budget.link,
                            [&] {
                              for (int i = 0; takes_part && i < repeats; ++i) run();
                            }) /
           repeats;
  };
  const auto one_way = [&](int64_t bytes, double expected_s) {
    return time(2 * expected_s,
                [&] {
                  comm.wait(first ? send(bytes) : receive(bytes));
                  comm.wait(first ? receive(bytes) : send(bytes));
                }) /
           2;
  };
  std::vector<Communicator::Request> requests;
  const auto exchange = [&](int64_t bytes, int count, double expected_s) {
    return time(count * expected_s, [&] {
      requests.clear();
      for (int i = 0; i < count; ++i) {
        requests.push_back(receive(bytes));
        requests.push_back(send(bytes));
      }
      for (const Communicator::Request r : requests) comm.wait(r);
    });
  };
  LinkMeasurement result;
  double last = 1e-6;
  exchange(kSmallMessage, 1, last);  // connects
  for (int64_t bytes = kSmallMessage; bytes <= budget.max_message_bytes; bytes *= 4) {
    const double one = one_way(bytes, last), both = exchange(bytes, 1, last);
    result.one_way.push_back({double(bytes), one});
    result.exchange.push_back({double(bytes), both});
    last = both;
    if (result.exchange.size() >= 3 && 4 * both > budget.largest_message_s) break;
  }
  constexpr int kMany = 16;
  const double small = result.exchange.front().seconds;
  const double many = exchange(kSmallMessage, kMany, small);
  // Each further exchange costs a rank two posts: one send, one receive.
  result.overhead_s = std::max(0.0, (many - small) / (kMany - 1) / 2);
  return result;
}

OverlapMeasurement measure_overlap(Communicator& comm, int threads,
                                   const CalibrationBudget& budget) {
  const int64_t seq_len = budget.overlap_rows * comm.size();
  const AttentionProblem problem{.seq_len = seq_len, .num_heads = 4, .num_kv_heads = 4};
  const ShardedProblem sharded{problem, dense_pattern(seq_len), {seq_len, comm.size()}};
  const auto kernel = make_kernel("cpu");
  MemoryLedger ledger;
  ProgramExecutor executor(ring_attention(sharded), *kernel, threads, comm, ledger);
  executor.fill_inputs();
  std::vector<double> computes;
  const auto time = [&](RunMode mode) {
    computes.clear();
    return quartile_seconds(comm, budget.overlap, [&] {
      executor.run(mode);
      computes.push_back(executor.phases().compute_s);
    });
  };
  OverlapMeasurement m{.seq_len = seq_len, .ranks = double(comm.size())};
  m.message_bytes = 2.0 * double(seq_len / comm.size() * problem.num_kv_heads * problem.head_dim) *
                    double(dtype_bytes(problem.dtype));
  m.compute_s = time(RunMode::kComputeOnly);
  m.communication_s = time(RunMode::kCommunicationOnly);
  m.full_s = time(RunMode::kFull);
  std::sort(computes.begin(), computes.end());
  m.compute_in_full_s = comm.max_of(computes[computes.size() / 4]);
  return m;
}

}  // namespace longnet
