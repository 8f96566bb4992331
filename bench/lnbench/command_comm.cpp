// `lnbench comm`: measures transports without attention, between hosts or GPUs.
#include <algorithm>
#include <filesystem>

#include "comm/host_transport.h"
#include "core/check.h"
#include "core/cuda/device.h"
#include "io/units.h"
#include "lnbench/terminal.h"
#include "measure/machine_load.h"
#include "run/backend.h"
#include "run/measure_comm.h"
#include "run/watchdog.h"

namespace longnet {
namespace {

std::vector<Column<CommRow>> comm_columns() {
  using enum Shown;
  using R = const CommRow&;
  const auto if_timed = [](R r, double value) { return r.timed() ? JsonNode(value) : JsonNode(); };
  return {
      {"operation", "", kText, 11, 0, [](R r) { return to_string(r.operation); }},
      {"bytes", "size", kBytes, 8, 0, [](R r) { return r.bytes; }},
      {"median_s", "time", kSeconds, 9, 0, [=](R r) { return if_timed(r, r.seconds()); }},
      {"algorithm_bytes_per_s", "algbw B/s", kCount, 10, 0,
       [=](R r) { return if_timed(r, r.algorithm_bytes_per_s()); }},
      {"bus_bytes_per_s", "busbw B/s", kCount, 10, 0,
       [=](R r) { return if_timed(r, r.bus_bytes_per_s()); }},
      {"samples", "n", kNumber, 4, 0, [](R r) { return r.samples.samples_s.size(); }},
      {"ci_share", "ci", kPercent, 7, 0,
       [](R r) {  // one sample says nothing about the next
         return r.samples.samples_s.size() > 1 ? JsonNode(r.samples.interval.relative_half_width())
                                               : JsonNode();
       }},
      {"note", "", kNote, 0, 0,
       [](R r) { return r.timed() ? "" : "no sample within the time budget"; }},
  };
}

// Measurements, and the ranks that took part.
struct CommResult {
  std::string transport{};
  std::vector<RankInfo> ranks{};
  std::vector<std::string> gpus{};  // by rank; only where ranks are on GPUs
  std::vector<CommRow> rows{};
};

void write_json(const std::filesystem::path& file, const World& world, double busy_share,
                const CommResult& result) {
  JsonNode places = JsonNode::array();
  const bool on_devices = result.transport != world.transport();
  for (const RankInfo& rank : result.ranks) {
    JsonNode place = JsonNode::object(
        {{"rank", rank.rank}, {"hostname", rank.hostname}, {"device", rank.device}});
    if (on_devices) place.set("gpu", result.gpus.at(size_t(rank.rank)));
    places.push(place);
  }
  const JsonNode root =
      JsonNode::object({{"program", "lnbench comm"},
                        {"build", to_json(build_info())},
                        {"environment", to_json(environment_of(world, busy_share, on_devices))},
                        {"transport", result.transport},
                        {"host_transport", world.transport()},
                        {"ranks", world.size()},
                        {"places", places},
                        {"rows", to_json(result.rows)}});
  write_file(file, dump_json(root, 2) + "\n", ": choose another place by --json");
}

int64_t max_bytes_of(const Options& options, bool on_devices) {
  const std::string text = !options.max_bytes.empty() ? options.max_bytes
                           : on_devices               ? "256MiB"
                                                      : "4MiB";
  const auto bytes = try_parse_bytes(text);
  if (!bytes || *bytes < 4)
    throw UsageError("--max-bytes ", text,
                     ": write a size of at least 4 bytes with its unit, e.g. 4KiB or 4MiB");
  return *bytes;
}

int default_ranks(bool on_devices) {
  return std::max(2, on_devices ? int(describe_devices().devices.size())
                                : capture_environment().usable_threads);
}

}  // namespace

int run_comm(const Options& options) {
  const bool on_devices = options.comm_transport != "host";
  const int64_t max_bytes = max_bytes_of(options, on_devices);
  const double busy = measure_busy_share();
  constexpr double kCommStepSeconds = 60 + 4 * kCommSampling.time_budget_s;
  Watchdog watchdog(launched_rank());
  watchdog.expect_start(kCommStepSeconds);
  World world(options.ranks > 0 ? options.ranks : default_ranks(on_devices));
  if (world.size() < 2)
    throw UsageError("a communicator needs two ranks: use ",
                     launcher_words(launched_transport(), 2), " or --ranks 2");
  std::string why_not = why_no_room(max_bytes, world.size(), world.ranks_on_this_machine(),
                                    double(capture_environment().memory_limit_bytes));
  if (world.is_root() && why_not.empty() && !options.json.empty())
    why_not = why_not_written(options.json, "--json");
  if (const DeviceReport report = describe_devices(); on_devices && !report.unusable.empty())
    why_not = concat("--transport ", options.comm_transport, ": ", report.unusable);
  for (const std::string& text : world.all_texts(why_not))  // a reason of some rank stops all
    if (!text.empty()) throw UsageError(text);
  const auto ranks = describe_ranks(world, world.threads_per_rank(), on_devices);
  const CommResult result = world.run([&](Communicator& comm) {
    const auto operations = on_devices
                                ? operations_on_device(options.comm_transport, comm, max_bytes)
                                : make_host_operations(comm, max_bytes);
    watchdog.rest();
    const auto gpus = on_devices ? devices_of_ranks(comm) : std::vector<std::string>();
    Table<CommRow> table(comm_columns(), table_style(options));
    if (comm.rank() == 0) {
      table.note(concat(comm.size(), " ranks (", operations->transport(),
                        "); time is the median over runs, ",
                        on_devices ? "of the device that took longest"
                                   : "from the first rank's begin to the last one's end"));
      table.note("the data of every line were verified before it was timed");
      table.head();
    }
    const CommHooks hooks{
        .begin = [&](const std::string& what) { watchdog.expect(what, kCommStepSeconds); },
        .end =
            [&](const CommRow& row) {
              watchdog.rest();
              if (comm.rank() == 0) table.add(row);
            }};
    const std::vector<CommRow> rows = measure_comm(*operations, max_bytes, hooks);
    if (comm.rank() == 0) table.finish();
    return CommResult{std::string(operations->transport()), ranks, gpus, rows};
  });
  if (world.is_root() && !options.json.empty()) write_json(options.json, world, busy, result);
  return kOk;
}

}  // namespace longnet
