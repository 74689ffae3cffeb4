// Known ONNX operators that are not supported, with the reason shown to users.
#include <map>
#include <string>

#include "ops/onnx/import.h"

namespace espalier {

const std::map<std::string, std::string>& UnsupportedOnnxOperators() {
  static const auto* const table = [] {
    auto* built = new std::map<std::string, std::string>;
    const auto add = [&](const std::string& reason, std::initializer_list<const char*> names) {
      for (const char* name : names) (*built)[name] = reason;
    };
    add("the shape of its result depends on the data", {"NonMaxSuppression", "Unique"});
    add("it works on strings",
        {"RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit"});
    add("it makes features of text; put that into the data set", {"TfIdfVectorizer"});
    add("it works on sequences of tensors",
        {"ConcatFromSequence", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase",
         "SequenceInsert", "SequenceLength", "SequenceMap", "SplitToSequence"});
    add("it works on optional values", {"Optional"});
    add("it draws random classes", {"Multinomial"});
    add("there is no operator for single bits",
        {"BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor"});
    add("there is no operator for it; exporters of the model families served here do not write it",
        {"DFT", "DeformConv", "Det", "MelWeightMatrix", "RoiAlign", "STFT"});
    add("there is no integer convolution", {"ConvInteger", "QLinearConv"});
    add("it decodes image files; put that into the data set", {"ImageDecoder"});
    for (const char* name :
         {"ArrayFeatureExtractor", "Binarizer", "CategoryMapper", "DictVectorizer",
          "FeatureVectorizer", "Imputer", "LabelEncoder", "LinearClassifier", "LinearRegressor",
          "Normalizer", "OneHotEncoder", "SVMClassifier", "SVMRegressor", "Scaler", "TreeEnsemble",
          "TreeEnsembleClassifier", "TreeEnsembleRegressor", "ZipMap"}) {
      (*built)[std::string("ai.onnx.ml.") + name] =
          "operators of classical machine learning are not read";
    }
    (*built)["ai.onnx.preview.training.Gradient"] =
        "gradients are made by Espalier; import the forward model";
    return built;
  }();
  return *table;
}

}  // namespace espalier
