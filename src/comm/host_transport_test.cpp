#include "comm/host_transport.h"

#include <gtest/gtest.h>

namespace longnet {
namespace {

TEST(HostTransports, SayWhatListsAndCommandLinesShow) {
  for (const HostTransport& transport : host_transports()) {
    EXPECT_NE(transport.name, kThreadTransport);
    EXPECT_FALSE(transport.about.empty()) << transport.name;
    EXPECT_FALSE(transport.launcher.empty()) << transport.name;
  }
  const HostTransport other{.name = "other", .launcher = "start -n"};
  EXPECT_EQ(launcher_words(&other, 4), "start -n 4");
  EXPECT_EQ(launcher_words(nullptr, 2), "mpirun -np 2");
}

}  // namespace
}  // namespace longnet
