#include "run/measure_comm.h"

#include "core/check.h"
#include "io/units.h"
#include "run/rank_clock.h"
#include "run/world.h"

namespace longnet {
namespace {

SampleHooks sample_hooks(CommOperations& operations, RankClock& clock, const CommRow& row,
                         int runs) {
  SampleHooks hooks = clock.hooks([&, runs] { operations.run(row.operation, row.bytes, runs); });
  if (operations.device_seconds()) {  // each device has a clock of its own
    hooks.prepare = [&] { operations.stream_barrier(); };
    hooks.over_ranks = [&](const RunSpan&) {
      return operations.host().max_of(*operations.device_seconds());
    };
  }
  return hooks;
}

}  // namespace

JsonNode to_json(const CommRow& row) {
  const auto bound = [&](double seconds) {  // one sample says nothing about the next
    return row.samples.samples_s.size() > 1 ? JsonNode(seconds / row.repeats) : JsonNode();
  };
  std::vector<double> samples;
  for (const double s : row.samples.samples_s) samples.push_back(s / row.repeats);
  JsonNode node = JsonNode::object({{"operation", to_string(row.operation)},
                                    {"bytes", row.bytes},
                                    {"operations_per_sample", row.repeats},
                                    {"samples_s", to_json(samples)}});
  if (!row.timed()) return node.set("reason", "no sample within the time budget");
  node.set("median_s", row.seconds()).set("ci_low_s", bound(row.samples.interval.low));
  node.set("ci_high_s", bound(row.samples.interval.high));
  node.set("ci_level", row.samples.interval.level);
  node.set("algorithm_bytes_per_s", row.algorithm_bytes_per_s());
  return node.set("bus_bytes_per_s", row.bus_bytes_per_s());
}

std::string why_no_room(int64_t max_bytes, int world_size, int ranks_here, double memory_bytes) {
  if (max_bytes < 4 * int64_t{world_size})
    return concat("--max-bytes ", format_bytes(double(max_bytes)), " is less than a gather of ",
                  world_size, " ranks, 4 bytes each: use ", 4 * world_size, " or more");
  // Two buffers of a rank, what the transport copies and what the data are compared with.
  const double needed = 4.0 * double(max_bytes) * ranks_here;
  if (needed <= memory_bytes) return "";
  return concat("--max-bytes ", format_bytes(double(max_bytes)), ": ", ranks_here, " ranks need ",
                format_bytes(needed), ", this machine has ", format_bytes(memory_bytes),
                "\n  hint: --max-bytes ", int64_t(memory_bytes / 4 / ranks_here));
}

std::vector<CommRow> measure_comm(CommOperations& operations, int64_t max_bytes,
                                  const CommHooks& hooks, const SampleOptions& sampling) {
  RankClock clock(operations.host(), gather(operations.host(), this_place()));
  const int ranks = operations.host().size();
  std::vector<CommRow> rows;
  for (const CommOperation what : kCommOperations) {
    const bool pair = is_point_to_point(what);
    for (int64_t bytes = pair ? 4 : 4 * ranks; bytes <= max_bytes; bytes *= 4) {
      CommRow row{.operation = what, .bytes = bytes, .bus = pair ? 1 : double(ranks - 1) / ranks};
      hooks.begin(concat(to_string(what), " of ", bytes, " bytes"));
      verify(operations, what, bytes);
      const int runs = operations.repeats_of(bytes);
      row.repeats = runs * (what == CommOperation::kSendRecv ? 2 : 1);  // half a round trip counts
      row.samples = sample(sampling, sample_hooks(operations, clock, row, runs));
      hooks.end(row);
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

}  // namespace longnet
