#include "comm/cuda/device_transport.h"

#include <algorithm>
#include <set>
#include <thread>

#include "core/check.h"

namespace longnet {

namespace {

// "host uuid" of the device of each rank's thread.
std::vector<std::string> all_places(Communicator& host) {
  const DeviceReport report = describe_devices();
  check(report.unusable.empty(), "no GPU for this rank: ", report.unusable);
  return host.all_texts(host_name() + " " + report.devices.at(size_t(current_device())).uuid);
}

// Properties of the ranks' machines and devices, by which transports are possible or not.
struct World {
  int ranks;
  bool one_host, own_devices;
  std::string no_nccl;  // why the ranks cannot use NCCL; empty on all of them or on none
};

World describe(Communicator& host) {
  const auto places = all_places(host);
  std::set<std::string> hosts;
  for (const std::string& place : places) hosts.insert(place.substr(0, place.find(' ')));
  std::string no_nccl = why_nccl_absent();
  if (host.max_of(no_nccl.empty() ? 0.0 : 1.0) > 0 && no_nccl.empty())
    no_nccl = "another rank's machine has no NCCL";
  return {.ranks = host.size(),
          .one_host = hosts.size() == 1,
          .own_devices = std::set(places.begin(), places.end()).size() == places.size(),
          .no_nccl = std::move(no_nccl)};
}

DeviceTransportKind choose(std::string_view name, const World& world) {
  using enum DeviceTransportKind;
  const auto names = enum_names<DeviceTransportKind>();
  const auto at = std::ranges::find(names, name);
  if (at == names.end())
    throw UsageError("unknown GPU transport '", name, "': use one of ", join(names, ", "));
  const auto kind = DeviceTransportKind(at - names.begin());
  if (kind != kAuto) return kind;
  if (world.ranks == 1) return kCudaIpc;
  if (world.own_devices && world.no_nccl.empty()) return kNccl;
  return world.one_host ? kCudaIpc : kMpiHost;
}

void require_nccl(DeviceTransportKind kind, const World& world) {
  if (!world.no_nccl.empty())
    throw UsageError("transport ", to_string(kind), ": ", world.no_nccl,
                     "\n  hint: use cuda_ipc or mpi_host");
  if (!world.own_devices)
    throw UsageError("transport ", to_string(kind), ": ", world.ranks,
                     " ranks, but some share a GPU, which NCCL refuses\n  hint: start one "
                     "rank per GPU, or use cuda_ipc (one machine) or mpi_host");
}

}  // namespace

DeviceTransport::Post& DeviceTransport::next_post() {
  if (used_posts_ == int(posts_.size())) posts_.emplace_back(Post{.ticket = used_posts_});
  Post& post = posts_[size_t(used_posts_++)];
  post.is_over = false;
  return post;
}

DeviceTransport::Ticket DeviceTransport::post(std::span<const Transfer> transfers,
                                              const Stream& stream) {
  Post& post = next_post();
  post.transfers.assign(transfers.begin(), transfers.end());
  if (post.transfers.empty())
    post.end_on(stream);
  else
    start(post, stream);
  return post.ticket;
}

DeviceTransport::Ticket DeviceTransport::post_gather(const Gather& gather, const Stream& stream) {
  Post& post = next_post();
  list_all_gather(gather.group, host_.rank(), gather.into, gather.counts, post.transfers);
  if (post.transfers.empty())
    post.end_on(stream);
  else
    start_gather(post, gather, stream);
  return post.ticket;
}

void DeviceTransport::complete(Ticket ticket, const Stream& waiting) {
  for (; arrived_ <= ticket; ++arrived_)
    if (Post& post = posts_.at(size_t(arrived_)); !post.is_over) arrive(post);
  waiting.wait(posts_.at(size_t(ticket)).over);
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
  return std::string(to_string(choose(name, describe(host))));
}

std::unique_ptr<DeviceTransport> make_device_transport(std::string_view name, Communicator& host) {
  const World world = describe(host);
  const DeviceTransportKind kind = choose(name, world);
  switch (kind) {
    case DeviceTransportKind::kMpiHost:
      return make_staged_transport(host);
    case DeviceTransportKind::kCudaIpc:
      if (!world.one_host)
        throw UsageError(
            "transport cuda_ipc: the ranks are on several machines\n  hint: use nccl or mpi_host");
      return make_ipc_transport(host);
    case DeviceTransportKind::kNccl:
    case DeviceTransportKind::kNcclRegistered:
      require_nccl(kind, world);
      return make_nccl_transport(kind, host);
    case DeviceTransportKind::kAuto:
      break;
  }
  throw Error("choose() returned the GPU transport ", to_string(kind));
}

}  // namespace longnet
