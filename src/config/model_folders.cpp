#include "trireme/config/model_folders.hpp"

namespace trireme::config {

const std::string& trained_folder(const Options& options) {
  return options.model.path.empty() ? options.model.shape : options.model.path;
}

}  // namespace trireme::config
