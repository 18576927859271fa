// Where what is built for one run of the tool lies.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>

#include "verbatim/error.h"

namespace verbatim::app {

/// A folder that is there until the tool ends.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::error_code failed;
    std::string name = (std::filesystem::temp_directory_path(failed) / "verbatim-XXXXXX").string();
    if (failed || !mkdtemp(name.data())) {
      const char* const asked = getenv("TMPDIR");
      throw Error(ErrorCode::io, "tl.build", "no folder can be made for a library",
                  {"TMPDIR", asked ? asked : "/tmp", "a folder that can be written to", "/tmp"});
    }
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(TemporaryFolder&&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace verbatim::app
