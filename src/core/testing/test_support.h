// Helpers for the tests of several rooms.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "core/check.h"

namespace longnet {

// The text of the UsageError that `f` throws, "" when it throws none.
template <class F>
std::string usage_error(F f) {
  try {
    f();
  } catch (const UsageError& e) {
    return e.what();
  }
  return "";
}

// Counts the cases of a sweep that ran, by name: cases that cannot run are left out, and a name
// whose cases were all left out tests nothing.
class CasesRun {
 public:
  void add(const std::string& name, bool ran) { cases_[name] += ran; }
  void expect_some_of_each() const {
    EXPECT_FALSE(cases_.empty()) << "no case at all";
    for (const auto& [name, count] : cases_) EXPECT_GT(count, 0) << name << ": every case left out";
  }

 private:
  std::map<std::string, int> cases_;
};

// A folder of its own for each test, removed afterwards.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::temp_directory_path() /
            concat("longnet_", test->test_suite_name(), "_", test->name(), "_", ::getpid());
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string path(const std::string& name = "") const {
    return name.empty() ? path_.string() : (path_ / name).string();
  }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
    return path(name);
  }
  std::string read(const std::string& name) const {
    std::ifstream file(path_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  std::filesystem::path path_;
};

}  // namespace longnet
