#include "comm/mpi/mpi_world.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace longnet {
namespace {

TEST(Launcher, IsRecognisedByItsVariables) {
  unsetenv("OMPI_COMM_WORLD_SIZE");
  unsetenv("PMI_SIZE");
  EXPECT_FALSE(launched_world_size().has_value());
  setenv("PMI_SIZE", "8", 1);
  EXPECT_EQ(launched_world_size(), 8);
  unsetenv("PMI_SIZE");
}

}  // namespace
}  // namespace longnet
