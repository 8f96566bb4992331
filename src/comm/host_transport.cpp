// The transports between hosts by name. README.md says how to add one.
#include "comm/host_transport.h"

#include "core/check.h"

namespace longnet {

std::span<const HostTransport> host_transports() {
  static const HostTransport kTransports[] = {
      mpi_transport(),
  };
  return kTransports;
}

const HostTransport* launched_transport() {
  for (const HostTransport& transport : host_transports())
    if (transport.launch()) return &transport;
  return nullptr;
}

std::optional<Launch> launched() {
  const HostTransport* transport = launched_transport();
  return transport ? transport->launch() : std::nullopt;
}

int launched_rank() { return launched().value_or(Launch{}).rank; }

std::string launcher_words(const HostTransport* transport, int ranks) {
  return concat((transport ? *transport : host_transports().front()).launcher, " ", ranks);
}

}  // namespace longnet
