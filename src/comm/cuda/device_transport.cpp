#include "comm/cuda/device_transport.h"

#include <unistd.h>

#include <algorithm>
#include <set>
#include <thread>

#include "core/check.h"

namespace longnet {
namespace {

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

// "host uuid" of the device of each rank's thread.
std::vector<std::string> all_places(Communicator& host) {
  const DeviceReport report = describe_devices();
  check(report.unusable.empty(), "no GPU for this rank: ", report.unusable);
  return host.all_texts(host_name() + " " + report.devices.at(size_t(current_device())).uuid);
}

struct World {
  bool one_host, own_devices;
};

World describe(const std::vector<std::string>& places) {
  std::set<std::string> hosts;
  for (const std::string& place : places) hosts.insert(place.substr(0, place.find(' ')));
  return {.one_host = hosts.size() == 1,
          .own_devices = std::set(places.begin(), places.end()).size() == places.size()};
}

// Reason why the ranks cannot use NCCL, empty on all of them or on none. Collective.
std::string why_no_nccl(Communicator& host) {
  std::string why = why_nccl_absent();
  if (host.max_of(why.empty() ? 0.0 : 1.0) > 0 && why.empty())
    why = "another rank's machine has no NCCL";
  return why;
}

std::string choose(std::string_view name, const World& world, const std::string& no_nccl,
                   int ranks) {
  if (name != "auto") return std::string(name);
  if (ranks == 1) return "cuda_ipc";
  if (world.own_devices && no_nccl.empty()) return "nccl";
  return world.one_host ? "cuda_ipc" : "mpi_host";
}

}  // namespace

void DeviceTransport::count(std::span<const Transfer> transfers) {
  for (const Transfer& t : transfers) {
    if (t.kind == Transfer::Kind::kRecv) {
      counters_.bytes_received += t.bytes;
      continue;
    }
    counters_.bytes_sent += t.bytes;
    if (t.bytes > 0) ++counters_.messages_sent;
  }
}

void DeviceTransport::wait_for(const Event& event) {
  constexpr int kPollsPerLook = 256;  // a poll takes about a microsecond
  try {
    for (int polls = 1; !event.over(); ++polls) {
      if (polls % kPollsPerLook == 0) {
        check_health();
        host().throw_if_broken();
      }
      std::this_thread::yield();
    }
  } catch (...) {
    abort();
    throw;
  }
}

DeviceTransport::Ticket DeviceTransport::post_gather(const RankGroup& group, std::byte* into,
                                                     std::span<const int64_t> counts,
                                                     const Stream& stream) {
  const int me = group.index_of(host().rank());
  check(me >= 0 && int(counts.size()) == group.count, "not a gather of this rank");
  std::vector<std::byte*> parts;
  for (const int64_t bytes : counts) {
    parts.push_back(into);
    into += bytes;
  }
  std::vector<Transfer> transfers;
  for (int i = 0; i < group.count; ++i) {
    if (i == me) continue;
    transfers.push_back({Transfer::Kind::kSend, group[i], parts[size_t(me)], counts[size_t(me)]});
    transfers.push_back({Transfer::Kind::kRecv, group[i], parts[size_t(i)], counts[size_t(i)]});
  }
  return post(transfers, stream);
}

int device_of_rank(Communicator& host) {
  const DeviceReport report = describe_devices();
  if (!report.unusable.empty()) throw UsageError(report.unusable);
  const auto hosts = host.all_texts(host_name());
  const auto here =
      std::count(hosts.begin(), hosts.begin() + host.rank(), hosts[size_t(host.rank())]);
  return int(size_t(here) % report.devices.size());
}

DevicesInUse devices_in_use(Communicator& host) {
  const auto places = all_places(host);
  const auto& mine = places.at(size_t(host.rank()));
  return {.devices = int(std::set(places.begin(), places.end()).size()),
          .ranks_on_mine = int(std::count(places.begin(), places.end(), mine))};
}

std::string resolve_device_transport(std::string_view name, Communicator& host) {
  const World world = describe(all_places(host));
  return choose(name, world, why_no_nccl(host), host.size());
}

std::unique_ptr<DeviceTransport> make_device_transport(std::string_view name, Communicator& host) {
  const World world = describe(all_places(host));
  const std::string no_nccl = why_no_nccl(host);
  const std::string chosen = choose(name, world, no_nccl, host.size());
  if (chosen == "nccl" || chosen == "nccl_registered") {
    if (!no_nccl.empty())
      throw UsageError(
          concat("transport ", chosen, ": ", no_nccl, "\n  hint: use cuda_ipc or mpi_host"));
    if (!world.own_devices)
      throw UsageError(concat("transport ", chosen, ": ", host.size(),
                              " ranks, but some share a GPU, which NCCL refuses\n  hint: start one "
                              "rank per GPU, or use cuda_ipc (one machine) or mpi_host"));
    return make_nccl_transport(host,
                               chosen == "nccl" ? NcclBuffers::kPlain : NcclBuffers::kRegistered);
  }
  if (chosen == "cuda_ipc") {
    if (!world.one_host)
      throw UsageError(
          "transport cuda_ipc: the ranks are on several machines\n  hint: use nccl or mpi_host");
    return make_ipc_transport(host);
  }
  if (chosen == "mpi_host") return make_staged_transport(host);
  std::string known;
  for (const std::string_view n : kDeviceTransports) known += concat(", ", n);
  throw UsageError(concat("unknown GPU transport '", name, "': use one of auto", known));
}

}  // namespace longnet
