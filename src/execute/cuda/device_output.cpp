#include "execute/cuda/device_output.h"

#include "core/check.h"
#include "execute/program_rows.h"
#include "kernels/cuda/rows.h"

namespace longnet {

Tolerance device_tolerance(double given, bool rounded) {
  // Where a kernel's error is near half a unit, both sides round to different values now and then.
  constexpr double kHalfBf16Unit = 1.0 / 256;
  return {.rel_l2 = given > 0 ? given : kDeviceTolerance + (rounded ? kHalfBf16Unit : 0),
          .lse = kDeviceLseTolerance};
}

int64_t count_nan_on_device(const BoundProgram& bound, const Stream& stream) {
  MemoryLedger ledger;
  DeviceBuffer total(ledger, "check", sizeof(unsigned long long));
  stream.fill(total.data(), 0, total.size());
  const std::span<const float> values = output_values(bound);
  count_nan(values.data(), int64_t(values.size()),
            reinterpret_cast<unsigned long long*>(total.data()), stream);
  unsigned long long count = 0;
  stream.copy(&count, total.data(), sizeof count);
  stream.synchronize();
  return int64_t(count);
}

SampleErrors compare_on_device(const BoundProgram& bound, const AttentionProblem& problem,
                               const std::vector<QuerySample>& samples, const Stream& stream) {
  const int64_t d = problem.head_dim;
  const auto mine = own_samples(bound, samples);
  const int64_t count = int64_t(mine.size());
  MemoryLedger ledger;
  DeviceBuffer packed(ledger, "check", count * (d + 1) * int64_t{sizeof(float)});
  auto* const at = reinterpret_cast<float*>(packed.data());
  std::vector<PackTask> rows, lses;
  for (int64_t i = 0; i < count; ++i) {
    const QuerySample& q = mine[size_t(i)];
    const int64_t batch = q.batch - bound.first_batch();
    rows.push_back({output_row(bound, batch, q.head, q.token).data(), at + i * d, d, d, 1});
    lses.push_back({output_lse(bound, batch, q.head, q.token), at + count * d + i, 1, 1, 1});
  }
  // Both have lists, until the copies are done.
  const PreparedRows pack_rows = prepare_pack(rows, d * int64_t{sizeof(float)}, 4, ledger);
  const PreparedRows pack_lses = prepare_pack(lses, 4, 4, ledger);
  pack_rows.launch(stream);
  pack_lses.launch(stream);
  std::vector<float> host(size_t(count * (d + 1)));
  stream.copy(host.data(), packed.data(), packed.size());
  stream.synchronize();
  return compare_rows(problem, bound.sharded().pattern, mine, output_is_rounded(bound),
                      [&](size_t i) {
                        OutputRow row{{host.data() + int64_t(i) * d, size_t(d)}, {}};
                        if (output_has_lse(bound)) row.lse = host[size_t(count * d) + i];
                        return row;
                      });
}

}  // namespace longnet
