// A client that trains with ExecuTorch's runtime in C++: no Python, no PyTorch.
//
// It follows the contract in docs/on-device.md: one argument, the folder of a task. That page has the
// command that builds it on Linux, from what the ExecuTorch wheel holds.
//
// On a phone the same calls are TrainingModule's (C++, Kotlin, Swift); here a plain Module is enough,
// since a program gives loss and statistics, then gradients, then the parameters where they lie.

#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

using executorch::aten::ScalarType;
using executorch::aten::Tensor;
using executorch::extension::Module;
using executorch::runtime::EValue;

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "device_client: %s\n", what.c_str());
  std::exit(1);
}

// --- JSON, as much of it as tasks and safetensors need ------------------------------------------

struct Json {
  std::string text;                              // a string
  double number = 0;                             // a number
  bool null = false;
  std::vector<Json> items;                       // an array
  std::vector<std::pair<std::string, Json>> members;  // an object, in its order

  const Json& operator[](const std::string& key) const {
    for (const auto& member : members)
      if (member.first == key) return member.second;
    fail("no " + key + " in a description");
  }
};

class Parser {
 public:
  explicit Parser(const std::string& text) : at_(text.data()), end_(at_ + text.size()) {}

  Json value() {
    Json found;
    const char first = peek();
    if (first == '{') {
      for (bool more = open('{', '}'); more; more = next('}')) {
        const std::string key = quoted();
        expect(':');
        found.members.emplace_back(key, value());
      }
    } else if (first == '[') {
      for (bool more = open('[', ']'); more; more = next(']')) found.items.push_back(value());
    } else if (first == '"') {
      found.text = quoted();
    } else if (end_ - at_ >= 4 && std::strncmp(at_, "null", 4) == 0) {
      found.null = true;
      at_ += 4;
    } else {
      char* after = nullptr;
      found.number = std::strtod(at_, &after);
      if (after == at_) fail("a description is no JSON");
      at_ = after;
    }
    return found;
  }

 private:
  char peek() {
    while (at_ < end_ && std::isspace(static_cast<unsigned char>(*at_))) ++at_;
    if (at_ == end_) fail("a description is cut off");
    return *at_;
  }
  void expect(char wanted) {
    if (peek() != wanted) fail("a description is no JSON");
    ++at_;
  }
  bool open(char begin, char close) {
    expect(begin);
    if (peek() != close) return true;
    ++at_;
    return false;
  }
  bool next(char close) {
    if (peek() == ',') return ++at_, true;
    expect(close);
    return false;
  }
  std::string quoted() {
    expect('"');
    std::string found;
    while (at_ < end_ && *at_ != '"') {
      if (*at_ == '\\') ++at_;  // names of tensors and files hold none
      found += *at_++;
    }
    expect('"');
    return found;
  }

  const char* at_;
  const char* end_;
};

// --- SHA-256 --------------------------------------------------------------------------------------

std::string sha256(const std::string& data) {
  static const uint32_t k[64] = {
      0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
      0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
      0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
      0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
      0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
      0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
      0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
      0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
  uint32_t h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                   0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::string padded = data + '\x80';
  padded.append((120 - padded.size() % 64) % 64, '\0');
  for (int i = 7; i >= 0; --i) padded += static_cast<char>(uint64_t(data.size()) * 8 >> (8 * i));
  const auto turn = [](uint32_t x, int by) { return x >> by | x << (32 - by); };
  for (size_t block = 0; block < padded.size(); block += 64) {
    uint32_t w[64];
    for (int i = 0; i < 16; ++i) {
      const auto* b = reinterpret_cast<const unsigned char*>(&padded[block + 4 * i]);
      w[i] = uint32_t(b[0]) << 24 | b[1] << 16 | b[2] << 8 | b[3];
    }
    for (int i = 16; i < 64; ++i) {
      const uint32_t s0 = turn(w[i - 15], 7) ^ turn(w[i - 15], 18) ^ w[i - 15] >> 3;
      const uint32_t s1 = turn(w[i - 2], 17) ^ turn(w[i - 2], 19) ^ w[i - 2] >> 10;
      w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    uint32_t v[8];
    std::copy(h, h + 8, v);
    for (int i = 0; i < 64; ++i) {
      const uint32_t s1 = turn(v[4], 6) ^ turn(v[4], 11) ^ turn(v[4], 25);
      const uint32_t t1 = v[7] + s1 + ((v[4] & v[5]) ^ (~v[4] & v[6])) + k[i] + w[i];
      const uint32_t s0 = turn(v[0], 2) ^ turn(v[0], 13) ^ turn(v[0], 22);
      const uint32_t t2 = s0 + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
      std::copy_backward(v, v + 7, v + 8);
      v[4] += t1;
      v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; ++i) h[i] += v[i];
  }
  char text[65];
  for (int i = 0; i < 8; ++i) std::snprintf(text + 8 * i, 9, "%08x", h[i]);
  return text;
}

// --- Files ----------------------------------------------------------------------------------------

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(path + ": cannot be read");
  std::stringstream content;
  content << file.rdbuf();
  return content.str();
}

void write_file(const std::string& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary);
  if (!file.write(content.data(), content.size())) fail(path + ": cannot be written");
}

// Tensors of a safetensors file: 8 bytes with the header's length, the header, then all values.
struct Tensors {
  struct Place {
    std::string dtype;
    std::vector<int32_t> shape;
    size_t begin, end;
  };

  explicit Tensors(const std::string& path) : data(read_file(path)) {
    uint64_t length = 0;
    if (data.size() < 8) fail(path + ": is cut off");
    std::memcpy(&length, data.data(), 8);
    start = 8 + length;
    if (start > data.size()) fail(path + ": is cut off");
    for (const auto& member : Parser(data.substr(8, length)).value().members) {
      if (member.first == "__metadata__") continue;
      Place place;
      place.dtype = member.second["dtype"].text;
      for (const auto& size : member.second["shape"].items) place.shape.push_back(size.number);
      place.begin = start + size_t(member.second["data_offsets"].items[0].number);
      place.end = start + size_t(member.second["data_offsets"].items[1].number);
      if (place.end > data.size()) fail(path + ": is cut off");
      places[member.first] = place;
    }
  }

  template <typename T>
  T* values(const std::string& name) {
    if (!places.count(name)) fail("no tensor " + name);
    return reinterpret_cast<T*>(&data[places[name].begin]);
  }
  size_t bytes(const std::string& name) { return places[name].end - places[name].begin; }

  std::string data;
  size_t start = 0;
  std::map<std::string, Place> places;
};

// --- Training -------------------------------------------------------------------------------------

// One batch out of all: the rows from `first`, `size` of them.
executorch::extension::TensorPtr batch(Tensors& all, const std::string& name, size_t first, size_t size) {
  const auto& place = all.places[name];
  const bool whole = place.dtype == "I64";
  if (!whole && place.dtype != "F32") fail(name + " is " + place.dtype + ", expected F32 or I64");
  auto shape = place.shape;
  const size_t row = all.bytes(name) / shape[0];
  shape[0] = size;
  return executorch::extension::from_blob(
      &all.data[place.begin + first * row], shape, whole ? ScalarType::Long : ScalarType::Float);
}

std::vector<EValue> run(Module& module, const std::string& method, const std::vector<EValue>& inputs = {}) {
  auto found = module.execute(method, inputs);
  if (!found.ok()) fail(method + ": error " + std::to_string(int(found.error())));
  return found.get();
}

int main(int count, char** arguments) {
  if (count != 2) fail("give the folder of a task");
  const std::string folder = std::string(arguments[1]) + "/";
  const Json task = Parser(read_file(folder + "task.json")).value();
  if (task["form"].text != "nefl-task-1") fail("task.json: expected the form nefl-task-1");
  if (task["steps"].null) fail("task.json: brings no steps, and there are no examples here");
  for (const auto& file : task["sha256"].members)
    if (sha256(read_file(folder + file.first)) != file.second.text)
      fail(file.first + ": does not have the checksum that task.json names");

  Tensors weights(folder + "weights.safetensors"), steps(folder + "steps.safetensors");
  Module module(folder + "program.pte");
  const std::string prefix = "model.";
  std::vector<std::string> names;
  for (const auto& name : run(module, "__et_training_fqn_forward"))
    names.push_back(std::string(name.toString()).substr(prefix.size()));
  const size_t gradients = run(module, "__et_training_gradients_index_forward")[0].toInt();
  const size_t parameters = run(module, "__et_training_parameters_index_forward")[0].toInt();

  const auto pass = [&](size_t first, size_t size) {
    auto inputs = batch(steps, "inputs", first, size), target = batch(steps, "target", first, size);
    return run(module, "forward", {EValue(*inputs), EValue(*target)});
  };
  // Parameters show themselves behind a first pass; from then on they stay where they are.
  std::vector<float*> values;
  const auto outputs = pass(0, size_t(task["steps"].items[0].items[0].number));
  for (size_t i = 0; i < names.size(); ++i) {
    values.push_back(outputs[parameters + i].toTensor().mutable_data_ptr<float>());
    std::memcpy(values[i], weights.values<float>(names[i]), weights.bytes(names[i]));
  }

  const float decay = task["weight_decay"].number, momentum = task["momentum"].number;
  std::vector<std::vector<float>> velocity(names.size());
  size_t place = 0;
  double total = 0;
  for (const auto& step : task["steps"].items) {
    const size_t size = step.items[0].number;
    const float rate = step.items[1].number;
    const auto found = pass(place, size);
    for (size_t i = 0; i < names.size(); ++i) {  // SGD, as torch's
      const Tensor gradient = found[gradients + i].toTensor();
      const float* slope = gradient.const_data_ptr<float>();
      const bool first = velocity[i].empty();
      velocity[i].resize(gradient.numel());
      for (ssize_t j = 0; j < gradient.numel(); ++j) {
        const float wanted = slope[j] + decay * values[i][j];
        velocity[i][j] = first ? wanted : momentum * velocity[i][j] + wanted;
        values[i][j] -= rate * velocity[i][j];
      }
    }
    for (size_t i = 0; i < task["norms"].items.size(); ++i) {  // running statistics
      const auto& norm = task["norms"].items[i].items;
      const double seen = size * norm[1].number;
      const double share = norm[2].null
          ? 1.0 / ++*weights.values<int64_t>(norm[0].text + ".num_batches_tracked")
          : (++*weights.values<int64_t>(norm[0].text + ".num_batches_tracked"), norm[2].number);
      const float unbiased = seen / std::max(seen - 1, 1.0);
      const Tensor mean = found[1 + 2 * i].toTensor(), variance = found[2 + 2 * i].toTensor();
      float* running_mean = weights.values<float>(norm[0].text + ".running_mean");
      float* running_var = weights.values<float>(norm[0].text + ".running_var");
      for (ssize_t j = 0; j < mean.numel(); ++j) {
        running_mean[j] += share * (mean.const_data_ptr<float>()[j] - running_mean[j]);
        running_var[j] += share * (unbiased * variance.const_data_ptr<float>()[j] - running_var[j]);
      }
    }
    total += found[0].toTensor().const_data_ptr<float>()[0];
    place += size;
  }

  for (size_t i = 0; i < names.size(); ++i)
    std::memcpy(weights.values<float>(names[i]), values[i], weights.bytes(names[i]));
  write_file(folder + "update.safetensors", weights.data);  // the same header, other values
  std::ostringstream report;
  report.precision(9);
  report << "{\"form\": \"nefl-update-1\"";
  for (const char* key : {"round", "client", "submodel", "examples"})
    report << ", \"" << key << "\": " << int64_t(task[key].number);
  report << ", \"loss\": " << total / task["steps"].items.size()
         << ", \"sha256\": {\"update.safetensors\": \"" << sha256(weights.data) << "\"}}";
  write_file(folder + "update.json", report.str());
}
