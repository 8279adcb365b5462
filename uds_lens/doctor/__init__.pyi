from ._checks import Finding as Finding, examine_environment as examine_environment, examine_inputs as examine_inputs
