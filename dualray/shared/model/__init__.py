"""The nouns: ids, specs, resources, states with their legal transitions, events, commands, errors and config."""
