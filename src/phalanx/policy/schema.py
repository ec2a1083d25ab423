"""The schema of policies, and the policies that equal the built-in rules.

`docs/how-to/policy.md` explains both to users.
"""

SCHEMA = """
entity Role;
// The labels of a namespace are those of the setting namespace_labels.
entity Namespace tags String;
entity User in [Role] = { name: String, role: String, namespaces: Set<String> };
entity Job = {
  namespace: Namespace,
  namespace_name: String,
  queue: String,
  priority: Long,
  gpus: Long,
  tasks: Long,
  owner: String,
};
entity Queue = { name: String };
entity Image = {
  reference: String,
  registry: String,
  repository: String,
  tag?: String,
  digest?: String,
};
entity Secret = { namespace: String, name: String };
entity Endpoint = { url: String, host: String, declared: Bool };
entity Worker = { name: String };

action SubmitJob, CancelJob, ManageJob, ManageCron, ExecTask appliesTo {
  principal: [User], resource: [Job], context: { in_own_namespace: Bool },
};
action ManageSecret appliesTo {
  principal: [User], resource: [Secret], context: { in_own_namespace: Bool },
};
action UseQueue appliesTo {
  principal: [User], resource: [Queue], context: { job: Job, admitted: Bool },
};
action DeployImage appliesTo { principal: [User], resource: [Image], context: { job: Job } };
action AccessSecret appliesTo { principal: [User], resource: [Secret], context: { job: Job } };
action AccessExternalEndpoint appliesTo {
  principal: [User], resource: [Endpoint], context: { job: Job },
};
action OverrideSecurity appliesTo {
  principal: [User], resource: [Job], context: { settings: Set<String> },
};
action ManageQueue appliesTo { principal: [User], resource: [Queue], context: {} };
action ManageWorker appliesTo { principal: [User], resource: [Worker], context: {} };
"""

#: What `phalanx policy init` writes: the same answers as without any policy.
STARTER = """\
// The rules that hold without policies, as policies. Every policy needs an @id, which is the name
// that answers and events use.

@id("admins")
permit (principal in Role::"admin", action, resource);

@id("users-in-their-namespaces")
permit (
  principal,
  action in [
    Action::"SubmitJob", Action::"CancelJob", Action::"ManageJob", Action::"ManageCron",
    Action::"ManageSecret", Action::"ExecTask"
  ],
  resource
) when { context.in_own_namespace };

@id("queues-admit-their-namespaces")
permit (principal, action == Action::"UseQueue", resource) when { context.admitted };

@id("images-of-trust-policies")
permit (principal, action == Action::"DeployImage", resource);

@id("secrets-of-the-namespace")
permit (principal, action == Action::"AccessSecret", resource);

@id("all-endpoints")
permit (principal, action == Action::"AccessExternalEndpoint", resource);

@id("security-settings-of-the-server")
permit (principal, action == Action::"OverrideSecurity", resource);
"""
