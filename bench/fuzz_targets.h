// The targets of `fuzz`: parsers, each with the inputs that are changed.
#pragma once
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "core/check.h"

namespace longnet {

// A place for what is parsed from a file.
class Scratch {
 public:
  Scratch() : path_(std::filesystem::temp_directory_path() / concat("longnet-fuzz-", ::getpid())) {
    std::filesystem::create_directories(path_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string put(const std::string& name, const std::string& text) const {
    const std::string path = (path_ / name).string();
    std::filesystem::remove(path);
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  std::string folder() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

struct Target {
  std::string name;
  std::vector<std::string> corpus;
  std::function<void(const std::string& text, int64_t run)> parse;
};

// Throws UsageError for a name that no target has. `scratch` must outlive it.
Target make_target(const std::string& name, const Scratch& scratch);

}  // namespace longnet
